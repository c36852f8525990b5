//! The command line: its words ([`arguments`]), and what each command does ([`commands`], `serve`).

pub mod arguments;
pub mod commands;
pub mod fields_arguments;
pub mod generate_arguments;
mod generating;
pub mod graph_arguments;
mod graphs;
mod inspection;
pub mod keyspace_arguments;
mod keyspaces;
pub mod pipeline_arguments;
mod queries;
mod ranges;
pub mod scan_arguments;
mod serve;
pub mod serve_arguments;
