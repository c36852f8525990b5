//! Builds the clients' states from frames, one after the other.

use super::client::{ManifestClient, ManifestClients, Misfit};
use super::items::{ClientId, FrameItems};
use super::{Frame, Kind};
use crate::error::Error;
use crate::media::wire::Reader;
use tapetum_drive::fail_point;

pub struct Replay<C> {
    pub clients: C,
    /// The snapshot has ended.
    pub whole: bool,
    /// Items of the snapshot so far.
    items: u32,
}

/// The client with an id among `clients`.
fn client_of<'a, C: ManifestClients>(
    clients: &'a mut C,
    id: ClientId,
    frame: &Frame,
) -> Result<&'a mut dyn ManifestClient, Error> {
    let found = clients.each_mut().into_iter().find(|client| client.id() == id);
    found.ok_or_else(|| {
        Error::OtherFormat(format!(
            "frame {} of the manifest (epoch {}) has an item of client {}, which this tapetum does not know: use the newer tapetum that \
             wrote it; nothing was written",
            frame.sequence, frame.epoch, id.0
        ))
    })
}

/// Gives each item of a frame to its client.
pub fn each_item<C: ManifestClients>(
    clients: &mut C,
    frame: &Frame,
    give: impl Fn(&mut dyn ManifestClient, &[u8]) -> Result<(), Misfit>,
) -> Result<u32, Error> {
    let place = |Misfit(what)| {
        Error::Corrupt(format!("the manifest {what} (its frame {} of epoch {})", frame.sequence, frame.epoch))
    };
    let items = FrameItems::parse(&frame.payload).map_err(|short| place(short.into()))?;
    for (id, bytes) in &items {
        give(client_of(clients, *id, frame)?, bytes).map_err(place)?;
    }
    Ok(items.len() as u32)
}

impl<C: ManifestClients> Replay<C> {
    /// Begins with the states of an empty store.
    pub fn of(clients: C) -> Replay<C> {
        Replay { clients, whole: false, items: 0 }
    }

    pub fn apply(&mut self, frame: &Frame) -> Result<(), Error> {
        match (frame.kind, self.whole) {
            (Kind::Snapshot, false) => {
                self.items += each_item(&mut self.clients, frame, |client, piece| client.load(piece))?;
                Ok(())
            }
            (Kind::SnapshotEnd, false) if Reader::new(&frame.payload).u32() == Ok(self.items) => {
                self.whole = true;
                Ok(())
            }
            (Kind::Edit, true) => {
                if !fail_point!(StaleCheckpoint) {
                    self.clients.each_mut().into_iter().for_each(|client| client.supersede());
                }
                each_item(&mut self.clients, frame, |client, edit| client.apply(edit)).map(|_| ())
            }
            _ => Err(Error::Corrupt(format!(
                "frame {} of the manifest (epoch {}) does not go with those before it",
                frame.sequence, frame.epoch
            ))),
        }
    }
}
