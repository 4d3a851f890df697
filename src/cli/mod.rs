//! Arguments, messages, exit codes.
