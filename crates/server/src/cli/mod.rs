//! The command line: its words ([`arguments`]), and what each command does ([`commands`], `serve`).

pub mod arguments;
pub mod commands;
pub mod pipeline_arguments;
mod ranges;
mod serve;
