//! The program: see [`b2fuse::cli`].

#[global_allocator]
static ALLOCATOR: b2fuse::cli::Allocator = b2fuse::cli::Allocator;

fn main() -> std::process::ExitCode {
    b2fuse::cli::main()
}
