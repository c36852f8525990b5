//! The table of groups, as the manifest has it.
//!
//! ```text
//!  item: edits, one behind the other, up to its end; a piece of a snapshot is edits that make what there is
//!   1 add:      first u32, extents varint, keyspace u16, class u8, version u64     a closed group
//!   2 open:     count u32, first u32 × count
//!   3 close:    count u32, first u32 × count
//!   4 remove:   count u32, first u32 × count
//!   5 drop:     keyspace u16                                                       all groups of the keyspace go
//!   6 versions: u64                                                                that of the next group
//!   7 round:    keyspace u16, stamp u64, stamp before u64, count u32,              which slots of its nodes may be written ([`SlotRound`])
//!               (first u32, words varint, free u64 × words, flying u64 × words) × count
//! ```
//! `first` is the number of a group's first extent, which names the group. Numbers are little-endian; a class is [`SlotClass::code`].
//!
//! 1. No two groups have an extent in common.
//! 2. A version is given to one group in the store's life.
//! 3. A keyspace has at most one round, and none without groups.

use super::slot_class::SlotClass;
use super::slot_round::SlotRound;
use std::collections::{BTreeMap, BTreeSet};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::media::wire::{Reader, Short, Writer};
use tapetum_kernels::extent_address::{EXTENTS_MAX, ExtentAddress};

const ADD: u8 = 1;
const OPEN: u8 = 2;
const CLOSE: u8 = 3;
const REMOVE: u8 = 4;
const DROP: u8 = 5;
const VERSIONS: u8 = 6;
const ROUND: u8 = 7;

/// Neighbouring extents that are cut into slots of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// The number of its first extent, which names the group.
    pub first: u32,
    pub extents: u32,
    pub keyspace: KeyspaceId,
    pub class: SlotClass,
    /// A part of the salt of everything in the group.
    pub version: u64,
    /// Images are written to the group, so it may hold torn ones.
    pub open: bool,
}

/// A change of the groups. Edits name groups by their first extents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupEdit {
    /// Adds a group as closed, whatever its `open` is.
    Add(Group),
    Open(Vec<u32>),
    Close(Vec<u32>),
    Remove(Vec<u32>),
    /// Drops a keyspace.
    Drop(KeyspaceId),
    /// The version of the next group is at least this one.
    Versions(u64),
    /// Begins a round of a keyspace.
    Round(SlotRound),
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GroupTable {
    /// Groups by first extent.
    groups: BTreeMap<u32, Group>,
    rounds: BTreeMap<KeyspaceId, SlotRound>,
    version_next: u64,
}

impl GroupEdit {
    /// Appends the edit, unless it names no group at all.
    pub fn encode(&self, writer: &mut Writer) {
        let mut list = |edit, groups: &[u32]| {
            if !groups.is_empty() {
                writer.u8(edit);
                writer.extents(groups);
            }
        };
        match self {
            GroupEdit::Open(groups) => list(OPEN, groups),
            GroupEdit::Close(groups) => list(CLOSE, groups),
            GroupEdit::Remove(groups) => list(REMOVE, groups),
            GroupEdit::Add(group) => {
                writer.u8(ADD);
                writer.u32(ExtentAddress::new(0, group.first).word());
                writer.varint(group.extents);
                writer.u16(group.keyspace.0);
                writer.u8(group.class.code());
                writer.u64(group.version);
            }
            GroupEdit::Drop(keyspace) => {
                writer.u8(DROP);
                writer.u16(keyspace.0);
            }
            GroupEdit::Versions(version) => {
                writer.u8(VERSIONS);
                writer.u64(*version);
            }
            GroupEdit::Round(round) => {
                writer.u8(ROUND);
                round.encode(writer);
            }
        }
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<GroupEdit, Short> {
        let [edit] = reader.array()?;
        match edit {
            ADD => parse_group(reader).map(GroupEdit::Add),
            OPEN => reader.extents().map(GroupEdit::Open),
            CLOSE => reader.extents().map(GroupEdit::Close),
            REMOVE => reader.extents().map(GroupEdit::Remove),
            DROP => Ok(GroupEdit::Drop(KeyspaceId(reader.u16()?))),
            VERSIONS => reader.u64().map(GroupEdit::Versions),
            ROUND => SlotRound::parse(reader).map(GroupEdit::Round),
            _ => Err(Short),
        }
    }
}

fn parse_group(reader: &mut Reader<'_>) -> Result<Group, Short> {
    let first = ExtentAddress::from_word(reader.u32()?).number_of_only_member().ok_or(Short)?;
    let (extents, keyspace, [class]) = (reader.varint()?, KeyspaceId(reader.u16()?), reader.array()?);
    let class = SlotClass::from_code(class).ok_or(Short)?;
    if extents == 0 || extents > EXTENTS_MAX - first {
        return Err(Short);
    }
    Ok(Group { first, extents, keyspace, class, version: reader.u64()?, open: false })
}

impl GroupTable {
    /// The group with this first extent.
    pub fn get(&self, first: u32) -> Option<&Group> {
        self.groups.get(&first)
    }

    /// The group that has an extent.
    pub fn of_extent(&self, extent: u32) -> Option<&Group> {
        let (_, group) = self.groups.range(..=extent).next_back()?;
        (extent < group.first + group.extents).then_some(group)
    }

    /// All groups, by first extent.
    pub fn iter(&self) -> impl Iterator<Item = &Group> + Send {
        self.groups.values()
    }

    pub fn of_keyspace(&self, keyspace: KeyspaceId) -> impl Iterator<Item = &Group> + Send {
        self.iter().filter(move |group| group.keyspace == keyspace)
    }

    /// The last round of a keyspace: the slots of nodes that may have been written since.
    pub fn round(&self, keyspace: KeyspaceId) -> Option<&SlotRound> {
        self.rounds.get(&keyspace)
    }

    /// The table as it is when everything written has landed: no group is open, and no round under way.
    pub fn at_rest(&self) -> GroupTable {
        let groups = self.groups.iter().map(|(first, group)| (*first, Group { open: false, ..*group })).collect();
        GroupTable { groups, rounds: BTreeMap::new(), version_next: self.version_next }
    }

    /// The lowest version that no group has had.
    pub fn version_next(&self) -> u64 {
        self.version_next
    }

    /// Applies an edit. An error says why it does not fit.
    pub fn edit(&mut self, edit: &GroupEdit) -> Result<(), String> {
        match edit {
            GroupEdit::Add(group) => self.add(group)?,
            GroupEdit::Open(groups) => self.set_open(groups, true)?,
            GroupEdit::Close(groups) => self.set_open(groups, false)?,
            GroupEdit::Remove(groups) => {
                let remove = |first| self.groups.remove(first).ok_or_else(|| absent(*first, "removes"));
                let removed = groups.iter().map(remove).collect::<Result<Vec<_>, _>>()?;
                let keyspaces: BTreeSet<_> = removed.into_iter().map(|group| group.keyspace).collect();
                for keyspace in keyspaces {
                    if self.of_keyspace(keyspace).next().is_none() {
                        self.rounds.remove(&keyspace);
                    }
                }
            }
            GroupEdit::Drop(keyspace) => {
                self.groups.retain(|_, group| group.keyspace != *keyspace);
                self.rounds.remove(keyspace);
            }
            GroupEdit::Versions(version) => self.version_next = self.version_next.max(*version),
            GroupEdit::Round(round) => drop(self.rounds.insert(round.keyspace, round.clone())),
        }
        Ok(())
    }

    fn add(&mut self, group: &Group) -> Result<(), String> {
        let end = group.first + group.extents;
        let before = self.groups.range(..end).next_back();
        if before.is_some_and(|(_, other)| other.first + other.extents > group.first) {
            return Err(format!("adds a group of slots at extent {}, which another group has", group.first));
        }
        self.version_next = self.version_next.max(group.version.saturating_add(1));
        self.groups.insert(group.first, Group { open: false, ..*group });
        Ok(())
    }

    fn set_open(&mut self, groups: &[u32], open: bool) -> Result<(), String> {
        for first in groups {
            let group = self.groups.get_mut(first).ok_or_else(|| absent(*first, "opens or closes"))?;
            group.open = open;
        }
        Ok(())
    }

    /// Applies the edits of an item, or of a piece of a snapshot. After an error the table is useless.
    pub fn apply(&mut self, item: &[u8]) -> Result<(), String> {
        let mut reader = Reader::new(item);
        while !reader.is_empty() {
            let edit = GroupEdit::parse(&mut reader).map_err(|Short| String::from("says what makes no sense"))?;
            self.edit(&edit)?;
        }
        Ok(())
    }

    /// The edits that make this table from an empty one, each group's together.
    pub fn snapshot_edits(&self) -> impl Iterator<Item = Vec<GroupEdit>> + Send {
        let versions = (self.version_next > 0).then(|| vec![GroupEdit::Versions(self.version_next)]);
        let edits = versions.into_iter().chain(self.iter().map(|group| {
            let opened = group.open.then(|| GroupEdit::Open(vec![group.first]));
            [GroupEdit::Add(*group)].into_iter().chain(opened).collect()
        }));
        edits.chain(self.rounds.values().map(|round| vec![GroupEdit::Round(round.clone())]))
    }

    /// The most bytes of these edits.
    pub fn snapshot_bytes_max(&self) -> u64 {
        const VERSIONS_BYTES: u64 = 1 + 8;
        const GROUP_BYTES_MAX: u64 = (1 + 4 + 5 + 2 + 1 + 8) + (1 + 4 + 4);
        let rounds: u64 = self.rounds.values().map(|round| 1 + round.encoded_bytes_max()).sum();
        VERSIONS_BYTES + self.groups.len() as u64 * GROUP_BYTES_MAX + rounds
    }
}

fn absent(first: u32, does: &str) -> String {
    format!("{does} a group of slots at extent {first} that is not there")
}

#[cfg(test)]
mod tests {
    use super::super::slot_round::RoundSlots;
    use super::*;

    fn group(first: u32, extents: u32, keyspace: u16) -> Group {
        let class = SlotClass::SLABS[first as usize % SlotClass::SLABS.len()];
        Group { first, extents, keyspace: KeyspaceId(keyspace), class, version: 100 + u64::from(first), open: false }
    }

    fn round(keyspace: u16) -> SlotRound {
        let slots = |words: u64| RoundSlots {
            free: (0..words).map(|word| word << 40).collect(),
            flying: (0..words).map(|word| word + 9).collect(),
        };
        let groups = BTreeMap::from([(7, slots(1)), (90, slots(3))]);
        SlotRound { keyspace: KeyspaceId(keyspace), stamp: 1 << 33, stamp_before: 5, groups }
    }

    fn encoded(edits: &[GroupEdit]) -> Vec<u8> {
        let mut writer = Writer::default();
        edits.iter().for_each(|edit| edit.encode(&mut writer));
        writer.into_bytes()
    }

    #[test]
    fn edits_read_back_and_what_is_none_is_refused() {
        let edits = [
            GroupEdit::Add(group(7, 300, 2)),
            GroupEdit::Open(vec![7, 9]),
            GroupEdit::Close(vec![7]),
            GroupEdit::Remove(vec![9]),
            GroupEdit::Drop(KeyspaceId(300)),
            GroupEdit::Versions(1 << 40),
            GroupEdit::Round(round(300)),
        ];
        for edit in &edits {
            let bytes = encoded(std::slice::from_ref(edit));
            assert_eq!(GroupEdit::parse(&mut Reader::new(&bytes)).as_ref(), Ok(edit));
            for length in 0..bytes.len() {
                assert_eq!(GroupEdit::parse(&mut Reader::new(&bytes[..length])), Err(Short));
            }
        }
        assert!(encoded(&[GroupEdit::Open(Vec::new()), GroupEdit::Close(Vec::new())]).is_empty());
        let add = encoded(&edits[..1]);
        // Extents: none, and too many. Then an unknown class, another member, and an unknown edit.
        for (at, byte) in [(5, 0), (3, 0xff), (9, 9), (4, 0x10), (0, 8)] {
            let mut bytes = add.clone();
            bytes[at] = byte;
            let parsed = GroupEdit::parse(&mut Reader::new(&bytes));
            assert!(parsed == Err(Short) || parsed.is_ok_and(|edit| edit != edits[0]), "byte {at}");
        }
    }

    #[test]
    fn a_table_is_what_its_snapshot_says() {
        let mut table = GroupTable::default();
        for number in 0..40 {
            table.edit(&GroupEdit::Add(group(10 * number, 1 + number % 10, (number % 3) as u16))).unwrap();
        }
        table.edit(&GroupEdit::Open(vec![0, 50, 390])).unwrap();
        table.edit(&GroupEdit::Remove(vec![390, 10])).unwrap();
        table.edit(&GroupEdit::Round(round(2))).unwrap();
        let bytes: Vec<u8> = table.snapshot_edits().flat_map(|edits| encoded(&edits)).collect();
        assert!(bytes.len() as u64 <= table.snapshot_bytes_max());
        let mut loaded = GroupTable::default();
        loaded.apply(&bytes).unwrap();
        assert_eq!(loaded, table);
        assert_eq!(loaded.version_next(), 491, "the version of a removed group is not given again");
        assert!(loaded.get(0).unwrap().open && !loaded.get(20).unwrap().open);
        assert_eq!(
            [0, 20, 22, 23].map(|extent| loaded.of_extent(extent).map(|group| group.first)),
            [Some(0), Some(20), Some(20), None]
        );
    }

    #[test]
    fn a_dropped_keyspace_takes_its_groups_along() {
        let mut table = GroupTable::default();
        for first in [0, 1, 2, 3] {
            table.edit(&GroupEdit::Add(group(first, 1, (first % 2) as u16))).unwrap();
        }
        [0, 1].into_iter().for_each(|keyspace| table.edit(&GroupEdit::Round(round(keyspace))).unwrap());
        table.edit(&GroupEdit::Drop(KeyspaceId(1))).unwrap();
        assert!(table.round(KeyspaceId(1)).is_none() && table.round(KeyspaceId(0)).is_some());
        assert_eq!(table.iter().map(|group| group.first).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(table.of_keyspace(KeyspaceId(1)).count(), 0);
        table.edit(&GroupEdit::Remove(vec![0, 2])).unwrap();
        assert!(table.round(KeyspaceId(0)).is_none(), "a later keyspace with this id begins anew");
    }

    #[test]
    fn edits_that_do_not_fit_say_what_is_wrong() {
        let mut table = GroupTable::default();
        table.edit(&GroupEdit::Add(group(10, 5, 0))).unwrap();
        for (first, extents) in [(10, 1), (14, 1), (8, 3), (8, 9), (11, 2)] {
            let refused = table.edit(&GroupEdit::Add(group(first, extents, 0))).unwrap_err();
            assert!(refused.contains("another group has"), "{refused}");
        }
        for edit in [GroupEdit::Open(vec![11]), GroupEdit::Close(vec![9]), GroupEdit::Remove(vec![15])] {
            assert!(table.edit(&edit).unwrap_err().contains("is not there"));
        }
        for (first, extents) in [(15, 1), (9, 1)] {
            table.edit(&GroupEdit::Add(group(first, extents, 0))).unwrap();
        }
        assert!(table.apply(&[99]).unwrap_err().contains("no sense"));
    }
}
