"""Groups of commands: `fedif keeper` and others, a file each; imports come with the call."""
