//! The command line: its words ([`arguments`]), and what each command does ([`commands`], `serve`).

pub mod access_arguments;
pub mod arguments;
pub mod backup_arguments;
mod backups;
pub mod commands;
pub mod drive_process;
pub mod fields_arguments;
pub mod freeze_arguments;
mod freezes;
pub mod generate_arguments;
mod generating;
pub mod graph_arguments;
mod graphs;
pub mod help;
#[cfg(feature = "images")]
pub mod import_arguments;
mod inspection;
pub mod keyspace_arguments;
mod keyspaces;
mod memcached_flags;
mod memcached_line;
mod mistypes;
mod passwords;
#[cfg(feature = "images")]
mod pictures;
pub mod pipeline_arguments;
mod presets;
pub mod promotion;
mod queries;
mod ranges;
mod reach;
pub mod repair_arguments;
mod scan_arguments;
mod serve;
pub mod serve_arguments;
mod table;
mod times;
mod users;
