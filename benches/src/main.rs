//! `kvbench`: see the library's `cli` module.

fn main() -> std::process::ExitCode {
    sidestep_bench::cli::main()
}
