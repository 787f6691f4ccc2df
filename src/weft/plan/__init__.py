"""The decision. Importing the package registers every strategy; a new one is one more line here."""

from weft.plan import chain, hiertrain, hiertrain_plus, jalad, jointdnn, peer_plan, whole

__all__ = ["chain", "hiertrain", "hiertrain_plus", "jalad", "jointdnn", "peer_plan", "whole"]
