//! Fuzz targets: each is an ordinary function of bytes that panics where something does not hold.
//!
//! The fuzzer (`fuzz/`, nightly, `cargo x fuzz`) calls them with bytes of its making; the test beside this library, on
//! stable, with the inputs that are kept in `fuzz/corpus`. Formats that only the store knows have theirs in
//! `tapetum::fuzzing`.
//!
//! A checksum keeps the fuzzer out: what it guesses never holds. So a target either seals what it was given, to get at
//! what lies behind the checksum, or writes what holds and damages it.

mod arrow_streams;
mod datagrams;
mod delta_bucket;
mod drive;
mod drive_pipelines;
mod formats;
mod graphs;
mod hot_keys;
mod item_lines;
mod logins;
mod memcached;
mod nbd;
mod nodes;
mod pages;
mod scans;

use tapetum_kernels::images::fuzzing as images;

pub struct Target {
    pub name: &'static str,
    pub body: fn(&[u8]),
    /// Longer inputs find nothing that these do not.
    pub length_max: usize,
}

const fn target(name: &'static str, body: fn(&[u8]), length_max: usize) -> Target {
    Target { name, body, length_max }
}

pub const TARGETS: &[Target] = &[
    target("memcached_text", memcached::text, 4096),
    target("memcached_binary", memcached::binary, 1024),
    target("datagram", datagrams::datagram, 1024),
    target("nbd_conversation", nbd::conversation, 1024),
    target("nbd_starttls", nbd::starting_tls, 1024),
    target("sasl", logins::sasl, 2560),
    target("users_file", logins::users_file, 512),
    target("numbers", memcached::numbers, 64),
    target("hot_keys", hot_keys::list, 512),
    target("item_lines", item_lines::item_lines, 512),
    target("drive_command", drive::command, 64),
    target("drive_stages", drive::stages, 512),
    target("drive_submit", drive::commands, 1024),
    target("drive_pipelines", drive_pipelines::pipelines, 1152),
    target("drive_identity", drive::identity, 512),
    target("drive_programs", drive::programs, 512),
    target("drive_hostile_host", tapetum_drive::fuzzing::hostile_host, 512),
    target("drive_hostile_drive", tapetum_drive::fuzzing::hostile_drive, 256),
    target("match_record", pages::match_record, 512),
    target("sealed_page", pages::sealed_page, 4096),
    target("key_table", pages::key_table, 4096),
    target("node", nodes::node, 1024),
    target("node_page", nodes::node_page, 1024),
    target("extension", nodes::extension, 256),
    target("record", formats::record, 256),
    target("reference", formats::reference, 128),
    target("fences", formats::fences, 1024),
    target("scan_format", scans::format, 512),
    target("scan_format_text", scans::format_text, 256),
    target("scan_query", scans::query, 1024),
    target("scan_result", scans::result, 512),
    target("arrow_rows", arrow_streams::rows, 512),
    target("flight_ticket", tapetum_flight::fuzzing::ticket, 512),
    target("flight_command", tapetum_flight::fuzzing::command, 512),
    target("flight_rows", tapetum_flight::fuzzing::rows, 1024),
    target("flight_action", tapetum_flight::fuzzing::action, 512),
    target("graph_work", graphs::work, 512),
    target("query_text", tapetum::fuzzing::query_text, 512),
    target("statement", tapetum::fuzzing::statement, 512),
    target("jpeg_decode", images::jpeg_decode, 4096),
    target("image_stage", images::image_stage, 1024),
    target("image_plan", images::image_plan, 256),
    target("codec", formats::codec, 1024),
    target("delta_bucket", delta_bucket::against_a_map, 512),
    target("delta_nonsense", delta_bucket::nonsense, 512),
    target("index", tapetum::fuzzing::index, 512),
    target("index_image", tapetum::fuzzing::index_image, 256),
    target("superblock", tapetum::fuzzing::superblock, 256),
    target("manifest_payload", tapetum::fuzzing::manifest_payload, 512),
    target("manifest_frames", tapetum::fuzzing::manifest_frames, 256),
    target("keyspace_edits", tapetum::fuzzing::keyspace_edits, 512),
    target("log", tapetum::fuzzing::log, 512),
];

pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
