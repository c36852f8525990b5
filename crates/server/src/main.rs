//! The binary `tapetum`: see [`tapetum_server::cli`].

fn main() -> std::process::ExitCode {
    tapetum_server::cli::commands::main()
}
