//! Holds a process and the page cache it fills to a budget, by a control group: for contenders whose memory is the page
//! cache, which would otherwise be the whole machine's. Version 1 and 2 of control groups; root only.

use std::path::{Path, PathBuf};

use crate::Failure;

/// Where memory is controlled, and the file in a group that takes the limit.
const PLACES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// The group that a process was put into; nothing where there are no control groups.
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
        // A group goes when nobody is in it: this process steps out; another one has ended by now.
        if let Some(above) = group.parent() {
            let _ = std::fs::write(above.join("cgroup.procs"), std::process::id().to_string());
        }
        if let Err(error) = std::fs::remove_dir(group) {
            eprintln!("{} stays behind: {error}", group.display());
        }
    }
}
