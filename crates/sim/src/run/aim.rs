//! Where a crash is to strike. Most states last for a few commands only: to strike each of them often, the power is
//! cut when the store is seen in it with a write on its way.

use crate::tally::State;
use tapetum_drive::SplitMix64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// At any command.
    Anywhere,
    Recover,
    /// When the store is in this state and has a write on its way.
    At(State),
}

impl Aim {
    pub fn draw(random: &mut SplitMix64) -> Aim {
        match random.below(16) {
            0..2 => Aim::Anywhere,
            2..5 => Aim::Recover,
            5 => Aim::At(State::Flush),
            6..8 => Aim::At(State::Install),
            8..11 => Aim::At(State::Merge),
            _ => Aim::At(State::Collect),
        }
    }
}
