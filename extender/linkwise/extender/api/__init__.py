"""The values that go in and come out: objects as read, calls, answers, actions."""
