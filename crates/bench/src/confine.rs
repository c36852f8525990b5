//! Limits a process, with the page cache that it fills, to a budget, by a control group. For contenders that use the page cache as memory,
//! which would otherwise be that of the whole machine. Control groups of version 1 and 2; root only.

use std::path::{Path, PathBuf};

use crate::Failure;

/// The mount points of the memory controller, and the name of a group's limit file.
const PLACES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// The group of a process; `None` if there are no control groups.
pub struct Confined(Option<PathBuf>);

impl Confined {
    pub fn new(process: u32, bytes: u64) -> Result<Confined, Failure> {
        for (place, limit) in PLACES {
            let group = Path::new(place).join(format!("tapetum-bench-{process}"));
            if std::fs::create_dir(&group).is_err() {
                continue;
            }
            let confined = Confined(Some(group.clone()));
            if std::fs::write(group.join(limit), bytes.to_string()).is_ok() {
                std::fs::write(group.join("cgroup.procs"), process.to_string())?;
                return Ok(confined);
            }
        }
        eprintln!("no control group holds process {process} to {} MiB: it has the machine's page cache", bytes >> 20);
        Ok(Confined(None))
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        let Some(group) = &self.0 else { return };
        // A group can be removed when it has no process: this process leaves it; any other one has ended.
        if let Some(above) = group.parent() {
            let _ = std::fs::write(above.join("cgroup.procs"), std::process::id().to_string());
        }
        if let Err(error) = std::fs::remove_dir(group) {
            eprintln!("{} stays behind: {error}", group.display());
        }
    }
}
