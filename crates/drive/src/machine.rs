//! Facts about this machine. The module has no state.

/// Bytes of this machine's memory and swap.
pub fn memory_and_swap_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram + system.totalswap).saturating_mul(u64::from(system.mem_unit))
}
