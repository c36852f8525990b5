//! Advice for values that are larger than a store takes.

use tapetum::{Store, ValueLimits};
use tapetum_drive::Size;
use tapetum_kernels::record::VALUE_BYTES_MAX;

use crate::opening;
use crate::size;

/// Why `store` takes no value of `bytes`, and what to do, if it does not.
pub fn refusal(bytes: usize, store: &Store) -> Option<String> {
    let most_bytes = store.value_bytes_max();
    let told = || {
        let (has, most) = (size::grouped(bytes as u64), size::grouped(most_bytes as u64));
        format!(
            "the value has {has} bytes, and this store takes {most} at most: {}",
            advice(bytes as u64, &store.value_limits())
        )
    };
    (bytes > most_bytes).then(told)
}

/// How values of `wanted_bytes` could be stored, which `limits` do not allow.
pub fn advice(wanted_bytes: u64, limits: &ValueLimits) -> String {
    if wanted_bytes > VALUE_BYTES_MAX as u64 {
        return format!("split it, as no store takes values of more than {}", Size(VALUE_BYTES_MAX as u64));
    }
    let ValueLimits { by_memory, by_capacity, by_write_buffers } = *limits;
    let mut parts = Vec::new();
    if by_memory < wanted_bytes {
        let suffices = |memory: &u64| memory.saturating_sub(opening::front_bytes(*memory)) / 8 >= wanted_bytes;
        // The front doors take a tenth: twice as much as the eighths is enough for any.
        let memory = (1..=16 * wanted_bytes.div_ceil(1 << 20) + 2).map(|mebibytes| mebibytes << 20).find(suffices);
        parts.extend(memory.map(|memory| format!("give --memory {} or more", size::typed(memory))));
    }
    if by_capacity < wanted_bytes || by_write_buffers < wanted_bytes {
        let mut made = String::from("make a new store and copy the items into it (tapetum dump, tapetum load), with");
        if by_capacity < wanted_bytes {
            // A little of it is the file system's.
            let capacity = (16 * wanted_bytes + wanted_bytes / 64).next_multiple_of(1 << 20);
            made += &format!(" --capacity {} or more", size::typed(capacity));
        }
        if by_write_buffers < wanted_bytes {
            let and = if by_capacity < wanted_bytes { " and" } else { "" };
            made += &format!("{and} --write-buffer {} or more", size::typed((wanted_bytes / 64).next_power_of_two()));
        }
        parts.push(made);
    }
    parts.join(", and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_own_way_out() {
        let plenty = ValueLimits { by_memory: 1 << 30, by_capacity: 1 << 30, by_write_buffers: 1 << 30 };
        let (wanted, less) = (16 << 20, 8 << 20);
        assert_eq!(advice(wanted, &ValueLimits { by_memory: less, ..plenty }), "give --memory 143MiB or more");
        let told = advice(wanted, &ValueLimits { by_capacity: less, ..plenty });
        assert!(told.starts_with("make a new store") && told.ends_with("with --capacity 257MiB or more"), "{told}");
        let told = advice(wanted, &ValueLimits { by_write_buffers: less, ..plenty });
        assert!(told.ends_with("with --write-buffer 256KiB or more"), "{told}");
        let told = advice(wanted, &ValueLimits { by_memory: less, by_capacity: less, by_write_buffers: less });
        assert!(told.contains("or more, and make") && told.contains("or more and --write-buffer"), "{told}");
        // No option helps over what the format takes.
        let told = advice(wanted + 1, &ValueLimits { by_memory: less, by_capacity: less, by_write_buffers: less });
        assert!(told.starts_with("split it") && told.contains("16MiB") && !told.contains("--"), "{told}");
    }
}
