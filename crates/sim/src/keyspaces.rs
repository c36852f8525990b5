//! The keyspaces of a run: slots, each of which has a keyspace or none. The first has the default one, for good.
//!
//! A key of the run belongs to a slot, and the same bytes are a key of every slot: so whatever one keyspace shows of another is seen.
//! What a slot's keyspace is after a crash is what it was, or what a change on its way was to make of it.

use tapetum::{Keyspace, KeyspaceKind, KeyspaceState, KeyspaceWish};
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
    /// Of its keyspace, if it has one.
    name: Option<String>,
    /// What a change that is on its way makes of the name.
    asked: Option<Option<String>>,
    names_given: u32,
}

impl Slot {
    pub fn new(number: usize) -> Slot {
        let name = (number == 0).then(|| "default".to_owned());
        Slot { number, name, asked: None, names_given: 0 }
    }

    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// A change to ask for, if one is due.
    pub fn draw(&mut self, random: &mut SplitMix64) -> Option<KeyspaceWish> {
        if self.asked.is_some() {
            // Nobody knows what the last one came to.
            return None;
        }
        self.names_given += 1;
        let fresh = format!("slot {} name {}", self.number, self.names_given);
        let (asked, wish) = match &self.name {
            None => {
                let (name, kind, options) = (fresh.clone().into_bytes(), KeyspaceKind::Hashed, Vec::new());
                (Some(fresh), KeyspaceWish::Create { name, kind, options })
            }
            Some(name) => match random.below(8) {
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
    let mut names: Vec<String> = live.map(|keyspace| keyspace.name.clone()).collect();
    let fates = slots.iter_mut().map(|slot| slot.find(&mut names, lenient)).collect::<Result<_, String>>()?;
    if !names.is_empty() && !lenient {
        return Err(format!("these keyspaces were dropped, or never made: {names:?}"));
    }
    Ok(fates)
}
