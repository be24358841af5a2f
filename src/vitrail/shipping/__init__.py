"""optimize and bench: the search over runtimes, precisions and token merging, and their speed on this machine."""
