//! The memory of this machine, and how much of it this process may use. No state.

use std::fs;
use std::path::Path;

use tapetum_drive::Size;
use tapetum_drive::machine::memory_and_swap_bytes;

use tapetum_service::size;

/// Memory of this machine, without swap.
pub fn memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(u64::from(system.mem_unit))
}

/// Why a budget of so much memory is refused, if it is more than the machine has.
pub fn why_too_much(memory_bytes: u64) -> Option<String> {
    let has_bytes = memory_and_swap_bytes();
    (memory_bytes > has_bytes).then(|| {
        let (wanted, has) = (Size(memory_bytes), size::at_most(has_bytes));
        format!("{wanted} is more than this machine has, {has} of memory and swap: give less")
    })
}

/// The memory limit of this process's control groups, if there is one: a container's, or that of a systemd unit.
pub fn memory_limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_of(&groups, Path::new("/sys/fs/cgroup"))
}

/// The least limit of the group that `groups` names (in the format of `/proc/self/cgroup`) and of its parents.
fn limit_of(groups: &str, root: &Path) -> Option<u64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(group);
    let folders = group.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(|folder| fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_nested_groups_counts() {
        let root = crate::folder::Folder::new("machine");
        let group = root.join("system.slice/tapetum.service");
        fs::create_dir_all(&group).unwrap();
        let limit = |group: &str| limit_of(&format!("1:cpu:/x\n0::/{group}\n"), &root);
        assert_eq!(limit("system.slice/tapetum.service"), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(root.join("system.slice/memory.max"), "1000000\n").unwrap();
        assert_eq!(limit("system.slice/tapetum.service"), Some(1_000_000));
        fs::write(group.join("memory.max"), "5000\n").unwrap();
        assert_eq!(limit("system.slice/tapetum.service"), Some(5_000));
        assert_eq!(limit(""), None);
        assert!(memory_and_swap_bytes() >= memory_bytes() && memory_bytes() > 0);
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused() {
        assert_eq!(why_too_much(memory_and_swap_bytes()), None);
        assert!(why_too_much(900 << 40).unwrap().starts_with("900TiB is more than this machine has, "));
    }
}
