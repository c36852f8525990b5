//! Reads whose moment comes before their answers, those of freezes: from the moment on a read is closed, and its answer is one that it could
//! get by then. Possibilities keep what a closed read got in each of them, so that its answer tells which of them it was.

use super::{Key, OperationId, Possibility, Rules, learn_stamp};
use crate::model::operation::{Expected, Kind, Told};

impl Possibility {
    fn answer_to(&self, id: OperationId) -> Option<&Expected> {
        self.done.iter().find(|done| done.0 == id).map(|done| &done.1)
    }
}

impl Key {
    /// Closes a read that is on its way. Returns the answers that it may get.
    pub fn close_read(&mut self, id: OperationId, rules: Rules) -> Vec<Expected> {
        let before = std::mem::take(&mut self.possible);
        let reached = self.reachable(before, rules, |possibility| possibility.has_done(id));
        self.remember(&reached);
        self.evictions_ended = rules.evictions.ended;
        self.pending.retain(|pending| pending.id != id);
        self.possible = reached.into_iter().filter(|possibility| possibility.has_done(id)).collect();
        let mut answers: Vec<Expected> = Vec::new();
        for answer in self.possible.iter().filter_map(|possibility| possibility.answer_to(id)) {
            if !answers.contains(answer) {
                answers.push(answer.clone());
            }
        }
        if answers.len() == 1 {
            // It tells nothing.
            self.withdraw(id);
        }
        answers
    }

    /// When everything may be deleted, as it was planned or is being planned.
    pub fn clear_times(&self) -> Vec<u32> {
        let planned = self.pending.iter().filter_map(|pending| match pending.kind {
            Kind::ClearAt(at) => Some(at),
            _ => None,
        });
        self.possible.iter().map(|possibility| possibility.clear_at).chain(planned).collect()
    }

    /// A key of which a read could get these answers, with a deletion of everything planned for one of these times.
    pub fn of_answers(answers: &[Expected], clear_times: &[u32], now_ms: u64, is_forgetful: bool) -> Key {
        let mut key = Key::new(is_forgetful);
        let absent = key.possible.remove(0);
        for item in answers.iter().map(Expected::item) {
            for clear_at in clear_times {
                let mut possibility = Possibility { item: item.cloned(), clear_at: *clear_at, ..absent.clone() };
                possibility.pass_time(now_ms);
                if !key.possible.contains(&possibility) {
                    key.possible.push(possibility);
                }
            }
        }
        key.past = is_forgetful.then(|| key.possible.clone());
        key
    }

    /// Takes the answer to a closed read, the first one. Returns whether it is right.
    pub fn reply_closed(&mut self, id: OperationId, told: &Told) -> bool {
        if !self.possible.iter().any(|possibility| possibility.has_done(id)) {
            return true;
        }
        for mut possibility in std::mem::take(&mut self.possible) {
            let Some(place) = possibility.done.iter().position(|done| done.0 == id) else { continue };
            let (_, expected) = possibility.done.remove(place);
            let is_it = expected.admits(told) && learn_stamp(&mut possibility, id, &expected, told);
            if is_it && !self.possible.contains(&possibility) {
                self.possible.push(possibility);
            }
        }
        !self.possible.is_empty()
    }
}
