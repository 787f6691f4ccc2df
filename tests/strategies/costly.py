"""Random tasks whose nodes were measured: messages and codecs cost the devices time."""

from __future__ import annotations

import dataclasses

import msgspec
from hypothesis import strategies as st

from weft.codecs.times import CodecTimes
from weft.plans.task import Task


def costly(data: st.DataObject, task: Task) -> Task:
    """The task, or the same one with drawn costs of messages and codecs on each device."""
    if data.draw(st.booleans()):
        return task
    seconds, each = st.floats(0, 1e-2), st.floats(0, 1e-5)
    devices = {
        name: msgspec.structs.replace(
            times,
            message_s=data.draw(seconds),
            byte_s=data.draw(each),
            codecs={"int8": CodecTimes(*(data.draw(s) for s in (seconds, each, seconds, each)))},
        )
        for name, times in task.profile.devices.items()
    }
    return dataclasses.replace(task, profile=msgspec.structs.replace(task.profile, devices=devices))
