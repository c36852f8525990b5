//! The keyspaces of a run: slots, each of which has a keyspace or none. The first has the default one, for good.
//!
//! A key of the run belongs to a slot, and the same bytes are a key of every slot: so an item that leaks from one keyspace into another is
//! seen. After a crash a slot's keyspace is as it was, or as a change on its way was to make it.

use tapetum::{BlockDevice, Keyspace, KeyspaceKind, KeyspaceState, KeyspaceWish};
use tapetum_drive::SplitMix64;

/// What became of a slot when the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It has the items that it had.
    Kept,
    /// It has none: its keyspace is gone, or is a new one.
    Emptied,
}

#[derive(Clone)]
pub struct Slot {
    number: usize,
    kind: KeyspaceKind,
    /// What its keyspaces are, if they are block devices.
    device: Option<BlockDevice>,
    /// Of its keyspace, if it has one.
    name: Option<String>,
    /// What a change that is on its way makes of the name.
    asked: Option<Option<String>>,
    names_given: u32,
}

impl Slot {
    /// A slot for keyspaces of this kind; the first one's is the default keyspace, which is hashed.
    pub fn new(number: usize, kind: KeyspaceKind, device: Option<BlockDevice>) -> Slot {
        let name = (number == 0).then(|| "default".to_owned());
        let kind = if number == 0 { KeyspaceKind::Hashed } else { kind };
        let device = device.filter(|_| number > 0 && kind == KeyspaceKind::Hashed);
        Slot { number, kind, device, name, asked: None, names_given: 0 }
    }

    pub fn is_ordered(&self) -> bool {
        self.kind == KeyspaceKind::Ordered
    }

    pub fn device(&self) -> Option<BlockDevice> {
        self.device
    }

    /// Whether blocks of its keyspaces lie in groups.
    pub fn is_grouped(&self) -> bool {
        self.device.is_some_and(|device| device.group_blocks() > 1)
    }

    /// Whether its keyspaces stay for long: a tree is to grow, a disk to be filled.
    pub fn lasts(&self) -> bool {
        self.is_ordered() || self.device.is_some()
    }

    /// Whether it has no keyspace, and none is being made.
    pub fn is_vacant(&self) -> bool {
        self.name.is_none() && self.asked.is_none()
    }

    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// A change to ask for, if one is due.
    pub fn draw(&mut self, random: &mut SplitMix64) -> Option<KeyspaceWish> {
        if self.asked.is_some() {
            // The outcome of the last one is not known.
            return None;
        }
        self.names_given += 1;
        let fresh = format!("slot {} name {}", self.number, self.names_given);
        let (asked, wish) = match &self.name {
            None => {
                let options = self.device.map(BlockDevice::options).unwrap_or_default();
                let (name, kind) = (fresh.clone().into_bytes(), self.kind);
                (Some(fresh), KeyspaceWish::Create { name, kind, options })
            }
            Some(name) => match random.below(if self.lasts() { 32 } else { 8 }) {
                0..3 => (None, KeyspaceWish::Drop { name: name.clone() }),
                3 => {
                    let wish = KeyspaceWish::Rename { from: name.clone(), to: fresh.clone().into_bytes() };
                    (Some(fresh), wish)
                }
                _ => return None,
            },
        };
        self.asked = Some(asked);
        Some(wish)
    }

    /// A wish to drop its keyspace, if nothing else is being made of it.
    pub fn ask_to_drop(&mut self) -> Option<KeyspaceWish> {
        let name = self.name.clone().filter(|_| self.asked.is_none())?;
        self.asked = Some(None);
        Some(KeyspaceWish::Drop { name })
    }

    /// The change was made; what it means for the items.
    pub fn changed(&mut self) -> Fate {
        let asked = self.asked.take().unwrap_or(None);
        let fate = if self.name.is_some() && asked.is_some() { Fate::Kept } else { Fate::Emptied };
        self.name = asked;
        fate
    }

    /// The change was refused.
    pub fn refused(&mut self) {
        self.asked = None;
    }

    fn may_be_named(&self, name: &str) -> bool {
        [Some(&self.name), self.asked.as_ref()].into_iter().flatten().any(|own| own.as_deref() == Some(name))
    }

    /// Looks for its keyspace among the names that are there, and takes it out; an error if that is none of those it may be.
    /// `lenient`: damage may hide changes.
    fn find(&mut self, names: &mut Vec<String>, lenient: bool) -> Result<Fate, String> {
        let may_be: Vec<Option<String>> = [Some(self.name.clone()), self.asked.take()].into_iter().flatten().collect();
        let found = may_be.iter().flatten().find(|name| names.contains(name)).cloned();
        if !lenient && !may_be.contains(&found) {
            return Err(format!("slot {} may be {may_be:?}, and the store has {names:?}", self.number));
        }
        names.retain(|name| Some(name) != found.as_ref());
        let fate = if self.name.is_some() && found.is_some() { Fate::Kept } else { Fate::Emptied };
        self.name = found;
        Ok(fate)
    }
}

/// Holds the keyspaces of a store that was opened against what there may be; what became of each slot.
pub fn find_all(slots: &mut [Slot], keyspaces: &[Keyspace], lenient: bool) -> Result<Vec<Fate>, String> {
    let live = keyspaces.iter().filter(|keyspace| keyspace.state == KeyspaceState::Live);
    for keyspace in live.clone() {
        let slot = slots.iter().find(|slot| slot.may_be_named(&keyspace.name));
        if slot.is_some_and(|slot| slot.kind != keyspace.kind) {
            return Err(format!("the keyspace {} is {} now", keyspace.name, keyspace.kind));
        }
    }
    let mut names: Vec<String> = live.map(|keyspace| keyspace.name.clone()).collect();
    let fates = slots.iter_mut().map(|slot| slot.find(&mut names, lenient)).collect::<Result<_, String>>()?;
    if !names.is_empty() && !lenient {
        return Err(format!("these keyspaces were dropped, or never made: {names:?}"));
    }
    Ok(fates)
}
