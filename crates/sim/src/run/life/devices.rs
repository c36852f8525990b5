//! Requests on block devices, handled like by a door: each block by itself, a change of a part of a block under the stamp that was read, a
//! barrier behind writes that must be durable.

use super::Life;
use crate::model::operation::Kind;
use crate::run::{Stop, World, wrong};
use crate::workload::{DeviceRequest, request};
use tapetum::{BlockChange, ChangeStep, Outcome, Patch, Reply};

/// A request that is not answered yet.
struct Asked {
    session: usize,
    parts: usize,
    /// A barrier follows the last part.
    is_forced: bool,
}

/// The pending requests on an open store's devices.
#[derive(Default)]
pub struct DevicesAsked {
    /// By number.
    requests: std::collections::BTreeMap<u64, Asked>,
    /// By operation: its request, and the change, if it changes a part of a block.
    parts: std::collections::BTreeMap<u64, (u64, Option<BlockChange>)>,
    /// Sessions whose forced writes wait for a barrier.
    due: Vec<usize>,
}

/// The change of a part of a block that an operation is, if it is one.
fn change_of(kind: &Kind) -> Option<BlockChange> {
    match kind {
        Kind::Patch { within, bytes } => Some(BlockChange::new(within.clone(), Patch::Bytes(bytes.to_vec()))),
        Kind::Zero { within } => Some(BlockChange::new(within.clone(), Patch::Zeros)),
        _ => None,
    }
}

impl Life {
    pub(super) fn submit_device(
        &mut self,
        world: &mut World,
        session: usize,
        slot: usize,
        asked: DeviceRequest,
    ) -> Result<(), Stop> {
        let Some(keyspace) = self.keyspaces[slot] else { return Ok(()) };
        let DeviceRequest { parts, is_forced } = asked;
        let number = world.workload.operation_id();
        self.devices.requests.insert(number, Asked { session, parts: parts.len(), is_forced });
        for (id, key, kind) in parts {
            let change = change_of(&kind);
            let name = world.workload.key(key);
            let request = change.as_ref().map_or_else(|| request(name, &kind), |change| change.request(name));
            let submitted = self.sessions[session].submit_to(keyspace, id, request);
            submitted.expect("a session has room for a few");
            self.on_their_way.insert(id, Some(key));
            self.devices.parts.insert(id, (number, change));
            // Requests that cover the same block run in any order, even those of one client.
            world.model.submit(id, id as usize, key, kind);
        }
        Ok(())
    }

    /// Handles a reply to a part of a request on a device. Returns it when the part is done.
    pub(super) fn go_on_with_device(
        &mut self,
        world: &mut World,
        session: usize,
        reply: Reply,
    ) -> Result<Option<Reply>, Stop> {
        let id = reply.token;
        let Some((number, mut change)) = self.devices.parts.remove(&id) else { return Ok(Some(reply)) };
        let Some(key) = self.on_their_way.get(&id).copied().flatten() else {
            return wrong(format!("a reply to part {id}, which is not on its way"));
        };
        if let (Some(changing), false) = (&mut change, matches!(reply.outcome, Outcome::Failed(_))) {
            let value = reply.outcome.value().map(|value| self.sessions[session].bytes(value));
            match changing.take(&reply.outcome, value) {
                ChangeStep::Done => {}
                ChangeStep::NoBlock => return wrong(format!("key {key} of a block device holds no block")),
                ChangeStep::GoesOn => {
                    let slot = world.workload.slot_of(key);
                    let keyspace = self.keyspaces[slot].expect("a keyspace with requests on their way stays");
                    let request = changing.request(world.workload.key(key));
                    let submitted = self.sessions[session].submit_to(keyspace, id, request);
                    submitted.expect("a session has room for a few");
                    self.devices.parts.insert(id, (number, change));
                    return Ok(None);
                }
            }
        }
        let failed = matches!(reply.outcome, Outcome::Failed(_));
        let asked = self.devices.requests.get_mut(&number).expect("a part has a request");
        asked.parts -= 1;
        asked.is_forced &= !failed;
        if asked.parts == 0 {
            let Asked { session, is_forced, .. } = self.devices.requests.remove(&number).expect("it was there");
            self.devices.due.extend(is_forced.then_some(session));
        }
        Ok(Some(reply))
    }

    /// Submits the barriers that forced writes wait for. The model has been told of their writes by now.
    pub(super) fn force_devices(&mut self, world: &mut World) -> Result<(), Stop> {
        for session in std::mem::take(&mut self.devices.due) {
            self.submit_sync(world, session)?;
        }
        Ok(())
    }
}
