//! Where a crash is to strike. Most states last for a few commands only: to strike each of them often, the power is
//! cut a few commands after the store was seen in it.

use crate::tally::State;
use tapetum_drive::SplitMix64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// At any command.
    Anywhere,
    Recover,
    /// A few commands after the store was first seen in this state.
    At(State),
}

impl Aim {
    pub fn draw(random: &mut SplitMix64) -> Aim {
        match random.below(16) {
            0..5 => Aim::Anywhere,
            5..7 => Aim::Recover,
            7..9 => Aim::At(State::Flush),
            9..11 => Aim::At(State::Install),
            11..14 => Aim::At(State::Merge),
            _ => Aim::At(State::Collect),
        }
    }
}
