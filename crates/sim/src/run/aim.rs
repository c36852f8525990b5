//! The state in which a crash should strike. Most states last only for a few commands. To strike each of them often, the power is cut when
//! the store is seen in it with a write in flight.

use crate::tally::State;
use tapetum_drive::SplitMix64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// At any command.
    Anywhere,
    Recover,
    /// While the store is closed.
    Close,
    /// When the store is in this state and has a write in flight.
    At(State),
}

impl Aim {
    /// `often`: the state that this run exercises most.
    pub fn draw(random: &mut SplitMix64, often: Option<State>) -> Aim {
        if let Some(state) = often.filter(|_| random.one_in(2)) {
            return Aim::At(state);
        }
        match random.below(20) {
            0..2 => Aim::Anywhere,
            2..5 => Aim::Recover,
            7 => Aim::At(State::Install),
            14 | 15 => Aim::At(State::LargeWrite),
            8..11 => Aim::At(State::Merge),
            11 => Aim::At(State::Resize),
            12..14 => Aim::Close,
            _ => Aim::At(State::Collect),
        }
    }

    /// Whether the state is so short that maintenance must linger in it while the log has writes in flight.
    pub fn lingers(self) -> bool {
        matches!(self, Aim::At(State::Merge | State::Grow))
    }
}
