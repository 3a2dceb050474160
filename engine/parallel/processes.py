"""placeholder"""


class ProcessExecutor:
    pass
