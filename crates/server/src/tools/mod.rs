//! The commands other than `serve`: loading, listing, inspecting, resizing. Plain functions over an open store, or over a connection to a
//! server.

pub mod arrow_rows;
pub mod drive_map;
pub mod graph_text;
pub mod inspect;
pub mod item_lines;
pub mod keep_file;
mod key_list;
pub mod key_text;
pub mod list;
pub mod load;
pub mod packages;
pub mod papers;
pub mod query_rows;
pub mod remote;
pub mod remote_items;
pub mod repair;
pub mod text_file;
pub mod warm;
