//! `tapetum help`: a command's help, its page of the manual, and what shells need to complete commands and options. All of it is made from
//! the command line's own description.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::commands::{Outcome, print};
use crate::cli::arguments::Cli;
use tapetum_service::suggestion::nearest;

#[derive(Debug, Args)]
pub struct HelpArguments {
    /// The command, such as: keyspace create
    command: Vec<String>,
    /// Print its page of the manual, as tapetum.1 or tapetum-COMMAND.1 is to have it
    #[arg(long, conflicts_with = "completions")]
    man: bool,
    /// Write the pages of all commands into this folder, as packages have them
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["command", "man", "completions"])]
    man_pages: Option<PathBuf>,
    /// Print what this shell needs to complete commands and options
    #[arg(long, value_name = "SHELL", value_enum, conflicts_with = "command")]
    completions: Option<Shell>,
}

pub fn run(arguments: &HelpArguments) -> Outcome {
    let mut out = Vec::new();
    let mut root = Cli::command();
    if let Some(shell) = arguments.completions {
        clap_complete::generate(shell, &mut root, "tapetum", &mut out);
        return print(&out);
    }
    if let Some(folder) = &arguments.man_pages {
        let written = clap_mangen::generate_to(root, folder);
        return written.map_err(|error| format!("no pages in {}: {error}", folder.display()).into());
    }
    root.build();
    let mut command = &mut root;
    for name in &arguments.command {
        if command.find_subcommand(name).is_none() {
            let unknown = unknown(command, name);
            Cli::command().error(ErrorKind::InvalidSubcommand, unknown).exit();
        }
        command = command.find_subcommand_mut(name).expect("it was found above");
    }
    match arguments.man {
        true => clap_mangen::Man::new(command.clone()).render(&mut out)?,
        false => out.extend_from_slice(command.render_long_help().to_string().as_bytes()),
    }
    print(&out)
}

fn unknown(command: &clap::Command, name: &str) -> String {
    let names = command.get_subcommands().map(clap::Command::get_name);
    let near = nearest(name, names).map_or(String::new(), |near| format!("did you mean {near:?}? "));
    let of = command.get_bin_name().unwrap_or("tapetum").to_owned();
    format!("`{of}` has no command {name:?}: {near}`{of} --help` lists them")
}
