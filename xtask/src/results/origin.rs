//! The origin of a result: the command as it was typed, the commit, the date, and the machine. An unknown part is "unknown".

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::workspace;

/// The origin of a result whose data lay in this folder.
pub fn origin(data: &Path) -> Value {
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let changes = said("git", &["status", "--porcelain"]);
    json!({
        "command": format!("cargo x {}", typed.join(" ")),
        "commit": said("git", &["rev-parse", "HEAD"]),
        "tree_has_changes": !changes.is_empty(),
        "date": said("date", &["-u", "+%FT%TZ"]),
        "machine": {
            "processors": std::thread::available_parallelism().map_or(0, |count| count.get()),
            "model": line_of("/proc/cpuinfo", "model name"),
            "memory_bytes": memory_bytes(),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "file_system": file_system(data),
        },
    })
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).current_dir(workspace::root()).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map_or("unknown".to_owned(), |text| text.trim().to_owned())
}

/// The text behind the colon of the first line with this start.
fn line_of(path: &str, start: &str) -> String {
    let text = read(path);
    let line = text.lines().find(|line| line.starts_with(start)).and_then(|line| line.split_once(':'));
    line.map_or("unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

fn memory_bytes() -> u64 {
    let kibibytes = line_of("/proc/meminfo", "MemTotal");
    kibibytes.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// The kind and device of the mount that the folder lies in.
fn file_system(folder: &Path) -> String {
    let mounts = read("/proc/self/mounts");
    let inside = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (device, at, kind) = (words.next()?, words.next()?, words.next()?);
        folder.starts_with(at).then(|| (at.len(), format!("{kind} on {device}")))
    });
    inside.max_by_key(|(length, _)| *length).map_or("unknown".to_owned(), |(_, mount)| mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_says_where_it_comes_from() {
        let origin = origin(workspace::root());
        assert!(origin["machine"]["processors"].as_u64().unwrap() > 0);
        assert!(origin["machine"]["memory_bytes"].as_u64().unwrap() > 1 << 28);
        assert!(origin["command"].as_str().unwrap().starts_with("cargo x"));
        assert_eq!(origin["date"].as_str().unwrap().len(), "2026-11-27T00:00:00Z".len());
    }
}
