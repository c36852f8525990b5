//! The keyspaces of a run. Each slot has a keyspace or none; the first one always has the default keyspace.
//!
//! A key of the run belongs to a slot, and the same bytes are a key in every slot, so an item that leaks from one keyspace into another is
//! detected. After a crash, a slot's keyspace is either as it was, or as a pending change would make it.

use tapetum::{BlockDevice, Keyspace, KeyspaceKind, KeyspaceState, KeyspaceWish};
use tapetum_drive::SplitMix64;

/// The state of a slot's items after the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The items are unchanged.
    Kept,
    /// There are none: the keyspace is gone, or is a new one.
    Emptied,
}

#[derive(Clone)]
pub struct Slot {
    number: usize,
    kind: KeyspaceKind,
    /// The block device that its keyspaces are, if they are.
    device: Option<BlockDevice>,
    /// The name of its keyspace, if it has one.
    name: Option<String>,
    /// The name after a pending change, if there is one.
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

    /// Whether the blocks of its keyspaces lie in groups.
    pub fn is_grouped(&self) -> bool {
        self.device.is_some_and(|device| device.group_blocks() > 1)
    }

    /// Whether its keyspaces live long, so that a tree grows or a disk fills.
    pub fn lasts(&self) -> bool {
        self.is_ordered() || self.device.is_some()
    }

    /// Whether it has no keyspace, and none is being created.
    pub fn is_vacant(&self) -> bool {
        self.name.is_none() && self.asked.is_none()
    }

    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// A change to request, if one is due.
    pub fn draw(&mut self, random: &mut SplitMix64) -> Option<KeyspaceWish> {
        if self.asked.is_some() {
            // The outcome of the last change is unknown.
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

    /// A request to drop its keyspace, if no other change is pending.
    pub fn ask_to_drop(&mut self) -> Option<KeyspaceWish> {
        let name = self.name.clone().filter(|_| self.asked.is_none())?;
        self.asked = Some(None);
        Some(KeyspaceWish::Drop { name })
    }

    /// Takes note that the change was made. Returns the effect on the items.
    pub fn changed(&mut self) -> Fate {
        let asked = self.asked.take().unwrap_or(None);
        let fate = if self.name.is_some() && asked.is_some() { Fate::Kept } else { Fate::Emptied };
        self.name = asked;
        fate
    }

    /// Takes note that the change was refused.
    pub fn refused(&mut self) {
        self.asked = None;
    }

    fn may_be_named(&self, name: &str) -> bool {
        [Some(&self.name), self.asked.as_ref()].into_iter().flatten().any(|own| own.as_deref() == Some(name))
    }

    /// Finds its keyspace among `names`, and removes it from them. An error if none of the possible names is there. `lenient`: damage may
    /// hide changes.
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

/// Compares the keyspaces of an opened store with the possible ones. Returns the state of each slot.
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
