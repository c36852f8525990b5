//! Commands, and bytes that cross between flash, the drive's local memory and the host, by purpose.

use tapetum_drive::{Purpose, PurposeAccount};

use crate::stats::{Figure, FigureKind};

/// Names and help, five a purpose.
macro_rules! purposes {
    ($($purpose:ident $name:literal: $what:literal,)*) => {
        const NAMES: [(Purpose, [(&str, &str); 5]); Purpose::COUNT] = [$((
            Purpose::$purpose,
            [
                (concat!("drive_", $name, "_flash_to_local_bytes"), concat!("Bytes read from flash into the drive's local memory ", $what)),
                (concat!("drive_", $name, "_local_to_flash_bytes"), concat!("Bytes written to flash ", $what)),
                (concat!("drive_", $name, "_local_to_host_bytes"), concat!("Bytes of the drive's local memory that the host looked at ", $what)),
                (concat!("drive_", $name, "_host_to_local_bytes"), concat!("Bytes that came from the host to the drive ", $what)),
                (concat!("drive_", $name, "_commands"), concat!("Commands that the host gave the drive ", $what)),
            ],
        ),)*];
    };
}

purposes!(
    Other "other": "for all else: manifest, superblock, checkpoint",
    Get "get": "for gets, and reads of what a client changes",
    Put "put": "for values that clients write beside the log",
    Log "log": "for the commit log",
    Flush "flush": "for flushes of write buffers",
    Collect "collect": "for collections and evictions",
    Recover "recover": "for opening the store",
    Warm "warm": "for items that come into DRAM before they are asked for",
    Scan "scan": "for scans and counts of items",
    Check "check": "for checks and inspections",
    Pipeline "pipeline": "for pipelines of programs",
    Structure "structure": "for splits, merges and purges of ordered keyspaces' nodes",
);

/// In the order of [`Purpose::ALL`].
pub fn figures(moved: &[PurposeAccount; Purpose::COUNT]) -> impl Iterator<Item = Figure> {
    NAMES.iter().flat_map(|(purpose, names)| {
        let PurposeAccount { flash_to_local, local_to_flash, local_to_host, host_to_local, commands } =
            moved[purpose.index()];
        let values = [flash_to_local, local_to_flash, local_to_host, host_to_local, commands];
        names.iter().zip(values).map(|((name, help), value)| Figure::new(name, FigureKind::Counter, help, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_has_figures_under_its_name() {
        let mut moved = [PurposeAccount::default(); Purpose::COUNT];
        moved[Purpose::Get.index()].local_to_host = 7;
        let figures: Vec<Figure> = figures(&moved).collect();
        for purpose in Purpose::ALL {
            let prefix = format!("drive_{}_", purpose.name());
            assert_eq!(figures.iter().filter(|figure| figure.name.starts_with(&prefix)).count(), 5, "{prefix}");
        }
        let moved: Vec<&Figure> = figures.iter().filter(|figure| figure.value != "0").collect();
        assert_eq!((moved.len(), moved[0].name, &moved[0].value[..]), (1, "drive_get_local_to_host_bytes", "7"));
    }
}
