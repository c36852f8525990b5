//! The context that the steps of a session share: the store, its trees, local memory, and the queue to the drive. Nothing here waits.

use super::in_hand::Members;
use super::node_turns::LineWait;
use super::op_state::Step;
use super::{TAG_RUN, scratch};
use crate::ordered::node_table::NodeId;
use crate::ordered::search::{AnchorKey, SearchHandle};
use crate::ordered::tree::{OrderedState, OrderedTree, TreeSource, of_search};
use std::sync::Arc;
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::session::engine_session::EngineSlot;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::NodeArguments;
use tapetum_drive::{Command, Completion, Lease, LocalBuffer, Operation, Purpose, QueuePair, Returned, Status};
use tapetum_kernels::ordered::NODE_BYTES;

/// A tree, and the session's handle of its search layer.
pub(super) struct SessionTree {
    pub tree: Arc<OrderedTree>,
    pub search: SearchHandle,
}

/// The reasons why the next poll makes progress without any completion.
#[derive(Default)]
pub(super) struct Again {
    /// A step must retry, as another thread held it up for a moment.
    pub tries: bool,
    /// An operation waits for a place in the cache.
    pub wants_room: bool,
    /// An operation found no memory in this poll.
    pub is_short: bool,
}

/// The means of a step: the context, and the session's core.
pub(super) type OrderedMeans<'a> = (&'a mut Context, &'a mut SessionCore);

/// Why programs did not change pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StructureStop {
    /// There is no memory for the command now.
    NoMemory,
    /// The drive never answers again, and keeps the pages.
    Stopped,
    /// The program says that a page is damaged, or its unit died.
    Failed(Status),
}

/// See the [module](self).
pub(super) struct Context {
    pub state: Arc<OrderedState>,
    pub slot: EngineSlot,
    source: Arc<dyn TreeSource>,
    pub trees: Vec<SessionTree>,
    pub again: Again,
    /// The session may change pages: it polls, and no freeze is being made ([`crate::ordered::gate`]).
    pub may_change: bool,
    /// The number of pages with commands of this session.
    pages_taken: usize,
    /// The parameters of the next program.
    pub parameters: Vec<u8>,
    /// The anchor of the node that was looked up last.
    pub anchor: AnchorKey,
    /// Empty vectors for reuse, for the operations of a group and for the queue's completions.
    pub members: Members,
    pub completions: Vec<Returned>,
    /// A scratch of its own, so that one command can always go on, however short memory is.
    own_scratch: Option<LocalBuffer>,
    /// The number of attempts and turns of operations.
    #[cfg(test)]
    pub attempts: usize,
}

impl Context {
    pub fn new(state: Arc<OrderedState>, source: Arc<dyn TreeSource>, slot: EngineSlot) -> Context {
        let own_scratch = state.base.drive.local().allocate(scratch::SCRATCH_BYTES);
        Context {
            state,
            slot,
            source,
            trees: Vec::new(),
            again: Again::default(),
            may_change: false,
            pages_taken: 0,
            parameters: Vec::new(),
            anchor: AnchorKey::new(),
            members: Members::new(),
            completions: Vec::new(),
            own_scratch,
            #[cfg(test)]
            attempts: 0,
        }
    }

    /// The index of a keyspace's tree among the session's.
    pub fn tree_of(&mut self, keyspace: KeyspaceId) -> Result<usize, Error> {
        if let Some(place) = self.trees.iter().position(|tree| tree.tree.keyspace == keyspace) {
            if !self.trees[place].tree.is_dropped() {
                self.again.wants_room |= !self.state.make(&self.trees[place].tree);
                return Ok(place);
            }
            self.trees.swap_remove(place);
        }
        let tree = self.source.find_tree(keyspace)?;
        let search = tree.search.handle().map_err(of_search)?;
        self.again.wants_room |= !self.state.make(&tree);
        self.trees.push(SessionTree { tree, search });
        Ok(self.trees.len() - 1)
    }

    /// The node that a key seems to be in.
    pub fn node_of(&mut self, tree: usize, key: &[u8]) -> NodeId {
        NodeId(self.trees[tree].search.floor(key, &mut self.anchor) as u32)
    }

    pub fn take_page(&self, core: &SessionCore) -> Option<LocalBuffer> {
        self.state.cache.spare_pages.take(|| core.spare_buffers.allocate(NODE_BYTES))
    }

    pub fn give_page(&self, page: LocalBuffer) {
        self.state.cache.spare_pages.give(page);
    }

    pub fn take_scratch(&mut self, core: &mut SessionCore) -> Option<LocalBuffer> {
        core.spare_buffers.take(scratch::SCRATCH_BYTES).or_else(|| self.own_scratch.take())
    }

    pub fn give_scratch(&mut self, core: &mut SessionCore, scratch: LocalBuffer) {
        match &self.own_scratch {
            None => self.own_scratch = Some(scratch),
            Some(_) => core.spare_buffers.give(scratch),
        }
    }

    /// As [`Context::give_scratch`], for who has no core.
    pub fn drop_scratch(&mut self, scratch: LocalBuffer) {
        self.own_scratch.get_or_insert(scratch);
    }

    /// An operation at a node continues when there is memory.
    pub fn starves(&mut self) -> Step {
        (self.again.wants_room, self.again.is_short) = (true, true);
        Step::BackInLine(LineWait::Memory)
    }

    /// Takes a page to read into, and a scratch.
    pub fn take_both(&mut self, core: &mut SessionCore) -> Option<(LocalBuffer, LocalBuffer)> {
        let page = self.take_page(core)?;
        match self.take_scratch(core) {
            Some(scratch) => Some((page, scratch)),
            None => {
                self.give_page(page);
                None
            }
        }
    }

    /// Whether another command may be sent. If not, the caller must wait; programs give their credits back within the poll.
    pub fn has_credit(&mut self, core: &SessionCore) -> bool {
        let has = core.queue.credits() > 0;
        self.again.tries |= !has && self.pages_taken > 0;
        has
    }

    pub fn has_pages_taken(&self) -> bool {
        self.pages_taken > 0
    }

    /// As [`Context::submit`], of a program at a page that the session has taken.
    pub fn submit_at_page(
        &mut self,
        core: &mut SessionCore,
        own: u64,
        purpose: Purpose,
        operation: Operation,
        lease: Lease,
    ) {
        self.pages_taken += 1;
        self.submit(core, own, purpose, operation, lease);
    }

    /// A program at a page has ended.
    pub fn page_returned(&mut self) {
        self.pages_taken -= 1;
    }

    /// Takes these arguments as the parameters of the next program.
    pub fn encode(&mut self, arguments: &NodeArguments) {
        self.parameters.clear();
        arguments.encode(&mut self.parameters);
    }

    /// Runs programs at pages that the session has taken, to their end: they are short. Other commands that end meanwhile are the session's
    /// next completions. `None`: the drive has stopped for ever, as a simulated one does.
    pub fn run(
        &self,
        core: &mut SessionCore,
        purpose: Purpose,
        operation: Operation,
        lease: Lease,
    ) -> Option<Returned> {
        while core.queue.credits() == 0 {
            let SessionCore { queue, completions, .. } = &mut *core;
            if queue.poll(completions) == 0 && !may_wait(queue) {
                return None;
            }
        }
        self.submit(core, TAG_RUN, purpose, operation, lease);
        let SessionCore { queue, completions, .. } = core;
        let tag = self.slot.tag(TAG_RUN);
        loop {
            let first = completions.len();
            let count = queue.poll(completions);
            if let Some(place) = (first..completions.len()).find(|place| completions[*place].completion.tag == tag) {
                return Some(completions.remove(place));
            }
            if count == 0 && !may_wait(queue) {
                return None;
            }
        }
    }

    /// As [`Context::run`], at one page, with a scratch, which comes back.
    pub fn run_at(
        &self,
        core: &mut SessionCore,
        purpose: Purpose,
        operation: Operation,
        page: &mut LocalBuffer,
        scratch: LocalBuffer,
    ) -> Result<(Completion, LocalBuffer), StructureStop> {
        let lease = Lease::Buffers([page.take(), scratch]);
        let returned = self.run(core, purpose, operation, lease).ok_or(StructureStop::Stopped)?;
        let Lease::Buffers([of_page, scratch]) = returned.lease else { unreachable!("it was lent both") };
        *page = of_page;
        Ok((returned.completion, scratch))
    }

    pub fn submit(&self, core: &mut SessionCore, own: u64, purpose: Purpose, operation: Operation, lease: Lease) {
        let command = Command::new(self.slot.tag(own), operation).of(purpose);
        core.queue.submit(command, lease).expect("a session has fewer commands on their way than its queue pair takes");
    }
}

/// Waits for the drive a moment. Returns whether it may still answer: a simulated drive that stopped never does.
pub(super) fn may_wait(queue: &mut QueuePair) -> bool {
    let may = queue.event_fd().is_some();
    if may {
        queue.wait(Some(Duration::from_millis(1)));
    }
    may
}
