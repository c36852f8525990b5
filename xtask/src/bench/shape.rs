//! The items of a row, and the memory and flash for them.

use std::path::PathBuf;

use tapetum_bench::turn::Setup;

use super::peers;
use crate::Failure;
use crate::arguments::Arguments;

#[derive(Clone)]
pub struct Shape {
    pub items: u64,
    pub value_bytes: u64,
    pub random_percent: u64,
    /// Values are JSON documents.
    pub json: bool,
    pub memory_bytes: u64,
    /// The part of the memory for items in DRAM.
    pub tier_bytes: u64,
    pub capacity_bytes: u64,
}

/// How much flash a row gives by default.
#[derive(Clone, Copy)]
pub enum Room {
    Ample,
    /// For nodes that are half full, and for replaced nodes.
    Nodes,
    /// Just so much that items take 80 % of it.
    Full,
}

impl Room {
    /// Flash bytes of an item besides key and value: the record's head, its entry in a key table, its part of a page's trailer.
    const STORED_MORE_BYTES: u64 = 34;

    fn capacity_bytes(self, items: u64, data_bytes: u64) -> u64 {
        match self {
            Room::Ample => data_bytes / 2 * 3 + (256 << 20),
            Room::Nodes => data_bytes / 2 * 5 + (512 << 20),
            Room::Full => (data_bytes + items * Room::STORED_MORE_BYTES) * 100 / 80,
        }
    }
}

impl Shape {
    /// Adds a DRAM tier that fits all items, and as many bytes of memory.
    pub fn with_tier(self) -> Shape {
        let tier_bytes = self.items * (super::KEY_BYTES + self.value_bytes) * 2;
        Shape { memory_bytes: self.memory_bytes + tier_bytes, tier_bytes, ..self }
    }

    /// By default: incompressible values, and memory of an eighth of the data.
    pub fn parse(arguments: &Arguments, items: u64, value_bytes: u64, room: Room) -> Result<Shape, Failure> {
        let items = arguments.number("items", items)?;
        let value_bytes = arguments.size("value", value_bytes)?;
        let random_percent = arguments.number("random-percent", 100)?;
        let data_bytes = items * (super::KEY_BYTES + value_bytes);
        let memory_bytes = arguments.size("memory", (data_bytes / 8).max(32 << 20))?;
        let capacity_bytes = arguments.size("capacity", room.capacity_bytes(items, data_bytes))?;
        Ok(Shape { items, value_bytes, random_percent, json: false, memory_bytes, tier_bytes: 0, capacity_bytes })
    }

    pub fn setup(&self, name: &str, data: PathBuf, items: u64, sync: bool, threads: u64) -> Setup {
        Setup {
            data,
            memory_bytes: self.memory_bytes,
            tier_bytes: self.tier_bytes,
            capacity_bytes: self.capacity_bytes,
            items,
            value_bytes: self.value_bytes,
            random_percent: self.random_percent,
            json: self.json,
            sync,
            // Documents are compressible, and the store compresses such values.
            compress: self.json || self.random_percent < 100,
            threads,
            drive_threads: peers::drive_threads(name),
            drive_process: peers::drive_process(name),
            compute_units: peers::compute_units(name),
            ordered: peers::node_cache_bytes(name, self.memory_bytes),
            export_bytes: peers::export_bytes(name),
        }
    }
}
