//! The only code that names fuser.
