//! The contents of superblock and manifest, and the map of the drive. Plain data, for tools.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Fields by name.
    pub superblock: Vec<(String, u64)>,
    pub manifest: Vec<(String, u64)>,
    pub segments: Vec<SegmentInspection>,
    /// Groups of slots of ordered keyspaces, by keyspace and class.
    pub groups: Vec<GroupInspection>,
    /// Trees of ordered keyspaces; empty while nobody has the store open.
    pub trees: Vec<TreeInspection>,
    /// Freezes that have not ended, the oldest first; empty while nobody has the store open.
    pub freezes: Vec<FreezeInspection>,
    /// The areas of the drive, from its first byte to its last.
    pub areas: Vec<Area>,
}

impl Inspection {
    /// A field of the superblock or the manifest by its name; 0 if there is none.
    pub fn field(&self, name: &str) -> u64 {
        let all = self.superblock.iter().chain(&self.manifest);
        all.clone().find(|field| field.0 == name).map_or(0, |field| field.1)
    }
}

/// A run of neighbouring bytes of the drive that serve one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub offset_bytes: u64,
    pub length_bytes: u64,
    pub kind: AreaKind,
    /// The segment that the area belongs to, for [`AreaKind::Data`], [`AreaKind::Keys`] and [`AreaKind::Large`].
    pub segment: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AreaKind {
    Superblock,
    /// The manifest, and its copy.
    Manifest,
    ManifestCopy,
    /// The log zones.
    Log,
    /// Data pages of a segment.
    Data,
    /// The key table of a segment.
    Keys,
    /// Large values whose records are in a segment.
    Large,
    /// Allocated, for data that is being written, or that is read for the last time.
    Held,
    /// Groups of slots for data nodes of ordered keyspaces.
    Nodes,
    /// Groups of slots for extensions: values of ordered keyspaces that are too large for a node.
    Extensions,
    /// The index and the anchors of ordered keyspaces, as a clean close left them. Opening the store frees their extents.
    Checkpoint,
    Free,
    /// The remainder that rounding leaves.
    Unused,
}

/// Names of the kinds, for programs that print and parse them.
pub const AREA_KINDS: [(AreaKind, &str); 13] = [
    (AreaKind::Superblock, "superblock"),
    (AreaKind::Manifest, "manifest"),
    (AreaKind::ManifestCopy, "manifest-copy"),
    (AreaKind::Log, "log"),
    (AreaKind::Data, "data"),
    (AreaKind::Keys, "keys"),
    (AreaKind::Large, "large"),
    (AreaKind::Held, "held"),
    (AreaKind::Nodes, "nodes"),
    (AreaKind::Extensions, "extensions"),
    (AreaKind::Checkpoint, "checkpoint"),
    (AreaKind::Free, "free"),
    (AreaKind::Unused, "unused"),
];

macro_rules! named_numbers {
    ($what:literal, $of:ident, $($name:ident: $help:literal,)*) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $of { $(#[doc = $help] pub $name: u64,)* }

        impl $of {
            /// Every field by its name.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Sets a field by its name. Returns whether there is such a field.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }
        }
    };
}

named_numbers!(
    "What the manifest says of a segment.",
    SegmentInspection,
    number: "Its place in the segment table.",
    version: "Unique in the store's life.",
    entries: "Records that it was written with.",
    valid_entries: "Those that are still valid.",
    record_bytes: "Bytes of all records.",
    valid_bytes: "Bytes of the valid ones.",
    data_pages: "Pages that hold records.",
    data_page_bytes: "The size of such a page.",
    data_extents: "Extents that hold those pages.",
    key_extents: "Extents that hold its key table.",
    stamp_max: "The highest stamp in it: how young it is.",
    expiry_max: "When the last of its records expires, in whole unix seconds; 4294967295 where some never do, 0 where none does.",
);

named_numbers!(
    "What the groups of one class come to that an ordered keyspace has.",
    GroupInspection,
    keyspace: "Its id.",
    class: "Of their slots: see [`SLOT_CLASSES`].",
    groups: "How many there are.",
    groups_open: "Those that images are written to.",
    extents: "That they have together.",
    slots: "In all of them.",
    slots_used: "Held by live images or extensions, or by those on their way; 0 while nobody has the store open.",
);

named_numbers!(
    "The tree of an ordered keyspace.",
    TreeInspection,
    keyspace: "Its id.",
    items: "Records in all data nodes.",
    nodes: "Data nodes.",
    nodes_unwritten: "Those that never had an image on flash.",
    depth_max: "Nodes of the search layer on the longest way to a data node.",
    depth_mean_tenths: "On the mean way, in tenths.",
    search_bytes: "What the search layer takes in memory.",
);

named_numbers!(
    "A freeze.",
    FreezeInspection,
    id: "By which it is named.",
    age_us: "How long ago it was made.",
    left_us: "How long until it ends by itself.",
    keyspaces: "That it shows.",
    flash_bytes: "Flash that it keeps from writers, alone or with other freezes.",
    memory_bytes: "Memory that it holds.",
    pause_us: "How long writers of ordered keyspaces waited for it.",
);

/// Names of the classes of slots, by their codes.
pub const SLOT_CLASSES: [&str; 7] = ["nodes", "4KiB", "8KiB", "16KiB", "32KiB", "64KiB", "large"];
