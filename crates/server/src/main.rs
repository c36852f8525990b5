//! The binary `tapetum`: see [`tapetum_server::cli`].

fn main() -> std::process::ExitCode {
    // The Makefile and `cargo x package` name the commit.
    if let Some(commit) = option_env!("TAPETUM_BUILD") {
        tapetum_server::version::set_build(commit);
    }
    tapetum_server::cli::commands::main()
}
