//! Handles: what C holds instead of a pointer.
//!
//! A handle is a number: the kind of its table, a generation, a place. Whatever number C gives, a table answers with its value or with
//! nothing: a place that is used again has another generation, so an old handle finds nothing.

use crate::pointers::plain;

/// A number that C takes for an opaque pointer. Zero, C's null, is never one of a table's.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(pub u64);
plain!(Handle);
const _: () = assert!(size_of::<*const u8>() == size_of::<Handle>(), "handles are as wide as C's pointers");

/// A table holds things of one of these kinds. Its handles are unknown to the tables of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Device = 1,
    Memory = 2,
    Event = 3,
    Batch = 4,
}

// A handle:
//
//   63     56 55        24 23      0
//   | kind   | generation | place + 1 |
const KIND_AT: u32 = 56;
const GENERATION_AT: u32 = 24;
const PLACE_MASK: u64 = (1 << GENERATION_AT) - 1;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

pub struct Table<T> {
    kind: Kind,
    /// The most values at a time.
    limit: usize,
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    pub const fn new(kind: Kind, limit: usize) -> Table<T> {
        assert!((limit as u64) < PLACE_MASK);
        Table { kind, limit, slots: Vec::new(), free: Vec::new() }
    }

    /// `None` if the table is full.
    pub fn insert(&mut self, value: T) -> Option<Handle> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot { generation: 0, value: None });
                self.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[place];
        slot.value = Some(value);
        Some(self.handle(place))
    }

    fn handle(&self, place: usize) -> Handle {
        let generation = u64::from(self.slots[place].generation);
        Handle((self.kind as u64) << KIND_AT | generation << GENERATION_AT | (place as u64 + 1))
    }

    /// The place of a value that is there.
    fn place(&self, handle: Handle) -> Option<usize> {
        let place = usize::try_from((handle.0 & PLACE_MASK).checked_sub(1)?).ok()?;
        let is_there = self.slots.get(place)?.value.is_some() && self.handle(place) == handle;
        is_there.then_some(place)
    }

    pub fn get(&self, handle: Handle) -> Option<&T> {
        self.slots[self.place(handle)?].value.as_ref()
    }

    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let place = self.place(handle)?;
        self.slots[place].value.as_mut()
    }

    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let place = self.place(handle)?;
        let slot = &mut self.slots[place];
        let value = slot.value.take();
        // A place whose generations are used up is not used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(place);
        }
        value
    }

    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        let all = self.slots.iter().enumerate();
        all.filter_map(|(place, slot)| Some((self.handle(place), slot.value.as_ref()?)))
    }
}

/// The place and the generation of a handle, for numbers that have less room than a handle.
pub fn place_and_generation(handle: Handle) -> (u64, u64) {
    ((handle.0 & PLACE_MASK).saturating_sub(1), handle.0 >> GENERATION_AT & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_handle_finds_nothing() {
        let mut table = Table::new(Kind::Memory, 2);
        let first = table.insert('a').unwrap();
        assert_eq!(table.get(first), Some(&'a'));
        assert_eq!((table.remove(first), table.remove(first)), (Some('a'), None));
        let second = table.insert('b').unwrap();
        assert!(first != second && table.get(first).is_none());
        assert_eq!(place_and_generation(second), (0, 1));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(second, &'b')]);
        *table.get_mut(second).unwrap() = 'c';
        assert_eq!(table.get(second), Some(&'c'));
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut table = Table::new(Kind::Event, 1);
        let first = table.insert(1).unwrap();
        assert_eq!(table.insert(2), None);
        table.remove(first);
        assert!(table.insert(3).is_some());
    }

    #[test]
    fn no_other_number_is_a_handle() {
        let mut table = Table::new(Kind::Device, 4);
        let handle = table.insert(1).unwrap();
        let of_other_kind = Table::new(Kind::Memory, 4).insert(1).unwrap();
        for number in [0, 1, u64::MAX, handle.0 + 1, handle.0 | 1 << GENERATION_AT, of_other_kind.0] {
            assert_eq!(table.get(Handle(number)), None, "{number:#x}");
        }
    }

    #[test]
    fn generations_do_not_wrap() {
        let mut table = Table::new(Kind::Batch, 1);
        let first = table.insert(1).unwrap();
        table.slots[0].generation = u32::MAX;
        assert_eq!(table.get(first), None);
        let last = table.handle(0);
        assert_eq!((table.remove(last), table.insert(2)), (Some(1), None));
    }
}
