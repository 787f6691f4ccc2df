"""CoopAI, its baseline SLS, and coopai+: rows and units over devices behind a gateway."""
