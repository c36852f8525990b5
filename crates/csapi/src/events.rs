//! Events: where a program asks whether its requests have ended.

use crate::pointers::Context;
use crate::types::CsStatus;
use std::sync::Mutex;
use tapetum_drive::locks::whole;

/// Requests of one event that have not been asked for.
const REQUESTS_MAX: usize = 1024;

#[derive(Default)]
pub struct Event(Mutex<EventState>);

#[derive(Default)]
struct EventState {
    next: u64,
    requests: Vec<EventRequest>,
}

struct EventRequest {
    ticket: u64,
    context: Context,
    /// `None` until it has ended.
    status: Option<CsStatus>,
}

impl Event {
    /// A request begins. `None` if there are too many.
    pub fn begin(&self, context: Context) -> Option<u64> {
        let mut state = whole(self.0.lock());
        if state.requests.len() == REQUESTS_MAX {
            return None;
        }
        let ticket = state.next;
        state.next += 1;
        state.requests.push(EventRequest { ticket, context, status: None });
        Some(ticket)
    }

    pub fn end(&self, ticket: u64, status: CsStatus) {
        let mut state = whole(self.0.lock());
        if let Some(request) = state.requests.iter_mut().find(|request| request.ticket == ticket) {
            request.status = Some(status);
        }
    }

    /// The request was not taken.
    pub fn forget(&self, ticket: u64) {
        whole(self.0.lock()).requests.retain(|request| request.ticket != ticket);
    }

    /// How a request with this context ended, the first that has; of null, any request. It is told once.
    pub fn poll(&self, context: Context) -> CsStatus {
        let mut state = whole(self.0.lock());
        let is_asked_for = |request: &EventRequest| context.is_null() || request.context == context;
        let ended = state.requests.iter().position(|request| is_asked_for(request) && request.status.is_some());
        if let Some(place) = ended {
            return state.requests.remove(place).status.unwrap_or(CsStatus::NotDone);
        }
        if state.requests.iter().any(is_asked_for) { CsStatus::NotDone } else { CsStatus::InvalidEvent }
    }
}
