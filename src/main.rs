//! The program: see [`b2fuse::cli`].

fn main() -> std::process::ExitCode {
    b2fuse::cli::main()
}
