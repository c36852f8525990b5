//! The request path without sockets: packets in memory go in, and what would be sent is there to look at. For measurements, and
//! for whatever is to give the same answers.

use tapetum::Reply;

use crate::connection::{Connection, Context};
use crate::engine::Session;
use crate::errands::Errands;
use crate::gets::Gets;
use crate::limits::{Budget, Limits};
use crate::out::Pool;
use crate::pipeline::Pipeline;
use crate::stats::Figures;
use crate::worker::unix_seconds;

/// One client and one worker's belongings. One thread at a time.
pub struct Packets<S> {
    session: S,
    connection: Connection,
    limits: Limits,
    budget: Budget,
    figures: Figures,
    errands: Errands,
    pool: Pool,
    scratch: Vec<u8>,
    gets: Gets,
    pipeline: Pipeline,
    replies: Vec<Reply>,
}

impl<S: Session> Packets<S> {
    pub fn new(session: S) -> Packets<S> {
        let limits = Limits::default();
        Packets {
            session,
            connection: Connection::new(0, 0),
            budget: Budget::new(limits.in_flight_bytes),
            gets: Gets::new(limits.in_flight_bytes),
            limits,
            figures: Figures::default(),
            errands: Errands::queue().0,
            pool: Pool::default(),
            scratch: Vec::new(),
            pipeline: Pipeline::default(),
            replies: Vec::new(),
        }
    }

    /// Takes packets, whole requests of one protocol, until all are answered or one of them ends it, and shows `sent` the replies.
    pub fn take(&mut self, packets: &[u8], mut sent: impl FnMut(&[u8])) {
        let mut taken = 0;
        loop {
            let now = unix_seconds();
            let mut context = Context {
                session: &mut self.session,
                limits: &self.limits,
                budget: &self.budget,
                figures: &self.figures,
                errands: &self.errands,
                worker: 0,
                counters: &self.figures.counters[0],
                pool: &mut self.pool,
                scratch: &mut self.scratch,
                now,
                gets: &mut self.gets,
                pipeline: &mut self.pipeline,
            };
            taken += self.connection.consume(&packets[taken..], &mut context);
            self.replies.clear();
            context.session.poll(&mut self.replies);
            for reply in &self.replies {
                self.connection.complete(reply.token as u32, &reply.outcome, &mut context);
            }
            self.connection.out.take(&mut self.pool, &mut sent);
            let over = taken == packets.len() || self.connection.closing;
            if over && self.connection.slots.is_empty() {
                return self.connection.release(&self.budget, &mut self.pool);
            }
        }
    }
}
