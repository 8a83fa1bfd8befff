"""The errors of the stand-in."""


class Error(Exception):
    pass


class UsageError(Error):
    pass


class CommError(Error):
    pass


class AuthenticationError(CommError):
    pass
