from hypothesis import settings

# hypothesis' default limit of 200 ms an example measures the machine's other jobs, not our code.
settings.register_profile("kv", deadline=None)
settings.load_profile("kv")
