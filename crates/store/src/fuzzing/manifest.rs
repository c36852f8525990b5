//! The manifest: the contents of its items, and areas that were written, cut by a crash or damaged.

use super::Input;
use crate::engines::empty_clients;
use crate::hashed::catalog::{Catalog, Deaths, Install, SegmentState};
use crate::hashed::index::checkpoint::Checkpoint;
use crate::hashed::manifest_client::{HashedEdit, InstallFrame};
use crate::hashed::segment::{Descriptor, LargeEntry};
use std::ops::Range;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::installer::{Clients, Installer};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::catalogue::{Catalogue, Keyspace, KeyspaceEdit, KeyspaceState};
use tapetum_base::keyspace::deletion_mark::DeletionMark;
use tapetum_base::keyspace_kind::KeyspaceKind;
use tapetum_base::manifest::base_marks::{BaseMarks, LogTrim, MarksEdit, Opening};
use tapetum_base::manifest::client::ManifestClient;
use tapetum_base::manifest::items::{ClientId, FrameItems};
use tapetum_base::manifest::{Manifest, Summary};
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::io::{Io, run};
use tapetum_base::media::wire::{Reader, Writer};
use tapetum_drive::{Drive, Env, Flash, LocalMemory, MemoryFlash};
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::extent_address::EXTENTS_MAX;
use tapetum_kernels::reference::Run;

/// The bytes of an item parse to something that reads back when written, or are refused. A change of the catalog that does not fit is refused.
pub fn manifest_payload(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut catalog = Catalog::default();
    let mut marks = BaseMarks::default();
    while !input.is_empty() {
        let (kind, length) = (input.u8(), input.u8());
        let payload = input.bytes(length.into());
        let mut writer = Writer::default();
        match kind & 3 {
            0 => {
                let Ok(edit) = HashedEdit::parse(payload) else { continue };
                edit.encode(&mut writer);
                assert_eq!(HashedEdit::parse(&writer).as_ref(), Ok(&edit));
                let mut changed = copy(&catalog);
                if changed.apply(payload).is_ok() {
                    check_catalog(&changed);
                    catalog = changed;
                }
            }
            1 => {
                let Ok(state) = SegmentState::parse(&mut Reader::new(payload)) else { continue };
                state.encode(&mut writer);
                assert_eq!(SegmentState::parse(&mut Reader::new(&writer)).as_ref(), Ok(&state));
                catalog.segments.insert(state.descriptor.number, state);
            }
            2 => {
                let Ok(items) = FrameItems::parse(payload) else { continue };
                let mut again = FrameItems::default();
                items.iter().for_each(|(id, bytes)| again.put(*id, |writer| writer.raw(bytes)));
                assert_eq!(again.payload(), payload);
            }
            _ => {
                let Ok(edit) = MarksEdit::parse(&mut Reader::new(payload)) else { continue };
                edit.encode(&mut writer);
                assert_eq!(MarksEdit::parse(&mut Reader::new(&writer)), Ok(edit));
                let known = marks.stamp_deleted();
                marks.edit(&edit);
                if matches!(edit, MarksEdit::Drop(_)) {
                    assert_eq!(marks.stamp_deleted(), known);
                }
                assert_eq!(reloaded(&marks), marks);
            }
        }
    }
}

/// Edits of the catalogue of keyspaces read back, fit it or are refused without a change, and a snapshot holds what they made.
pub fn keyspace_edits(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let mut catalogue = Catalogue::default();
    while let Ok(edit) = KeyspaceEdit::parse(&mut reader) {
        let mut writer = Writer::default();
        edit.encode(&mut writer);
        assert_eq!(KeyspaceEdit::parse(&mut Reader::new(&writer)).as_ref(), Ok(&edit));
        let before = catalogue.clone();
        if catalogue.apply(&edit).is_err() {
            assert_eq!(catalogue, before);
        }
        let default = catalogue.get(KeyspaceId::DEFAULT).cloned().expect("it is always there");
        let without_format = Keyspace { format: Vec::new(), ..default };
        assert_eq!(Some(&without_format), Catalogue::default().get(KeyspaceId::DEFAULT));
    }
    for keyspace in catalogue.iter().filter(|keyspace| catalogue.is_live(keyspace.id)) {
        assert_eq!(catalogue.find(&keyspace.name).map(|found| found.id), Ok(keyspace.id));
    }
    assert_eq!(reloaded(&catalogue), catalogue);
}

/// A client's state after a snapshot. The snapshot is no longer than its declared maximum.
fn reloaded<T: ManifestClient + Default>(client: &T) -> T {
    let (mut loaded, mut bytes) = (T::default(), 0);
    for piece in client.snapshot() {
        bytes += piece.len() as u64;
        loaded.load(&piece).expect("a snapshot loads");
    }
    assert!(bytes <= client.snapshot_bytes_max());
    loaded
}

/// A catalog with bits of its own: clones share theirs.
fn copy(catalog: &Catalog) -> Catalog {
    let copy_state = |state: &SegmentState| {
        let mut writer = Writer::default();
        state.encode(&mut writer);
        SegmentState::parse(&mut Reader::new(&writer)).expect("a state reads back")
    };
    let segments = catalog.segments.iter().map(|(&number, state)| (number, copy_state(state))).collect();
    Catalog { segments, ..catalog.clone() }
}

fn check_catalog(catalog: &Catalog) {
    for (number, state) in &catalog.segments {
        assert_eq!(*number, state.descriptor.number);
        assert_eq!(state.valid_entries, state.valid.ones());
        assert!(state.valid_entries <= state.descriptor.entries);
    }
}

/// Clients with bits of their own.
fn copy_of(clients: &Clients) -> Clients {
    let mut copied = clients.clone();
    *copied.of_mut::<Catalog>() = copy(clients.of::<Catalog>());
    copied
}

/// Whether clients are as before, perhaps without the checkpoint: a snapshot ends that before the change itself is written.
fn is_cut_back(found: &Clients, before: &Clients) -> bool {
    let mut without = copy_of(before);
    without.of_mut::<Catalog>().checkpoint = None;
    found == before || *found == without
}

/// A drive with nothing but a manifest on it.
struct Area {
    drive: Drive,
    io: Io,
    geometry: Geometry,
}

impl Area {
    const STORE: u64 = 77;

    fn new() -> Area {
        // Little room, so that snapshots are written.
        let geometry = Geometry::new(2 << 20, 64 << 10, 2, 512).expect("a small store");
        let geometry = Geometry { manifest_bytes: 8 << 10, ..geometry };
        let flash: Arc<dyn Flash> = Arc::new(MemoryFlash::new(64 << 10));
        let local = LocalMemory::new(256 << 10).expect("memory");
        let (env, _) = Env::simulated(1);
        let drive = Drive::new(flash, local, Vec::new(), env);
        let io = Io::new(drive.queue_pair(16).expect("a queue pair"));
        Area { drive, io, geometry }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        run(&self.io, future, || false).expect("memory answers")
    }

    fn recover(&self) -> Result<Installer, Error> {
        let recovered = Manifest::recover(&self.io, self.drive.local(), &self.geometry, Self::STORE, empty_clients);
        self.run(recovered).map(Installer::from)
    }

    /// Both areas.
    fn image(&self) -> Vec<u8> {
        let length = 2 * self.geometry.manifest_bytes as usize;
        let mut buffer = self.drive.local().allocate(length).expect("memory");
        self.run(self.io.read(self.geometry.manifest_offset(0), &mut buffer, 0, length)).expect("a read");
        buffer.bytes()[..length].to_vec()
    }

    fn set_image(&self, image: &[u8]) {
        let mut buffer = self.drive.local().allocate(image.len()).expect("memory");
        buffer.bytes_mut()[..image.len()].copy_from_slice(image);
        let flash = self.geometry.manifest_offset(0);
        self.run(self.io.write_durably(flash, &mut buffer, image.len())).expect("a write");
    }
}

/// Recovery gives the state that was written last. A frame that a crash cut in both areas leaves nothing. Damage of one area makes no difference.
pub fn manifest_frames(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (what, at, damage) = (input.u8(), usize::from(input.u16()), input.array::<3>());
    let area = Area::new();
    area.run(Manifest::create(&area.io, &area.geometry, Area::STORE, &empty_clients())).expect("room");
    let mut installer = area.recover().expect("an empty store");
    let (mut before, mut now) = (copy_of(&installer), copy_of(&installer));
    let (mut image_before, mut places) = (area.image(), [installer.manifest.summary(); 2]);
    let mut steps = 0;
    while !input.is_empty() && steps < 24 {
        steps += 1;
        // Only a cut looks at it.
        let image = if what & 3 == 1 { area.image() } else { Vec::new() };
        let place_before = installer.manifest.summary();
        if !step(&area, &mut installer, &mut input) {
            continue;
        }
        (before, now, image_before) = (now, copy_of(&installer), image);
        places = [place_before, installer.manifest.summary()];
    }
    let whole = area.image();
    match what & 3 {
        0 => assert_eq!(area.recover().expect("what was written").clients, now),
        1 => {
            let image = if image_before.is_empty() { whole.clone() } else { cut(&image_before, &whole, places, at) };
            area.set_image(&image);
            let found = area.recover().expect("a crash is no damage").clients;
            // If something was cut off, the old state may have come back, or only the filling behind the frame differs.
            let cut_off = image != whole;
            assert!(found == now || (cut_off && is_cut_back(&found, &before)), "{found:?} instead of {before:?}");
        }
        _ => {
            let mut image = whole.clone();
            let at = at % (image.len() - damage.len());
            image[at..].iter_mut().zip(damage).for_each(|(byte, damage)| *byte ^= damage);
            area.set_image(&image);
            assert_eq!(area.recover().expect("the other area has it").clients, now);
        }
    }
    // Whatever was recovered, the manifest goes on from there.
    let mut again = area.recover().expect("as before");
    let mut expected = copy_of(&again);
    area.run(again.open(1000, 7)).expect("room");
    expected.of_mut::<Catalog>().checkpoint = None;
    let generation = expected.marks.opening.generation + 1;
    expected.marks.opening = Opening { generation, stamp_base: 1000, stamp_opened: 7 };
    assert_eq!(area.recover().expect("what was written").clients, expected);
}

/// The drive after a crash in the last change. It has a snapshot up to some sector of the first area, or of the second; or the edit, up to some
/// sector of each.
fn cut(before: &[u8], whole: &[u8], [place_before, place]: [Summary; 2], at: usize) -> Vec<u8> {
    let mut image = before.to_vec();
    let mut write = |area: usize, range: Range<u64>, at: Option<usize>| {
        let (from, sectors) = (area * whole.len() / 2 + range.start as usize, (range.end - range.start) as usize / 512);
        let end = from + 512 * at.map_or(sectors, |at| at % (sectors + 1));
        image[from..end].copy_from_slice(&whole[from..end]);
    };
    let begins_anew = place.epoch != place_before.epoch;
    let edit = if begins_anew { place.snapshot_end } else { place_before.position }..place.position;
    let (stage, at) = if begins_anew { (at % 3, at / 3) } else { (2, at) };
    if begins_anew {
        write(0, 0..place.snapshot_end, (stage == 0).then_some(at));
        if stage > 0 {
            write(1, 0..place.snapshot_end, (stage == 1).then_some(at));
        }
    }
    if stage == 2 {
        write(0, edit.clone(), Some(at));
        write(1, edit, Some(at / 16));
    }
    image
}

/// One change, durable and made; `false` when it does not fit.
fn step(area: &Area, installer: &mut Installer, input: &mut Input<'_>) -> bool {
    let what = input.u8();
    match what & 7 {
        0 => {
            let stamp_base = installer.marks.opening.stamp_base + u64::from(what);
            area.run(installer.open(stamp_base, stamp_base / 2)).expect("room for a few segments");
            installer.of_mut::<Catalog>().supersede();
        }
        1 => {
            let checkpoint = HashedEdit::Checkpoint(checkpoint(input));
            let mut items = FrameItems::default();
            items.put(ClientId::HASHED, |writer| checkpoint.encode(writer));
            let Installer { manifest, clients, .. } = installer;
            if !area.run(manifest.append_if_room(clients, &items)).expect("room") {
                return false;
            }
            let HashedEdit::Checkpoint(checkpoint) = checkpoint else { unreachable!("it was made one") };
            clients.of_mut::<Catalog>().checkpoint = Some(checkpoint);
        }
        7 => return change_keyspace(area, installer, KeyspaceId(u16::from(input.u8()) & 3)),
        _ => {
            let shape = input.u8();
            let marks = marks(installer, input);
            let frame = InstallFrame {
                install: install(installer.of::<Catalog>(), shape, input),
                marks,
                ..InstallFrame::default()
            };
            let mut changed = copy_of(installer);
            if frame.apply(&mut changed).is_err() {
                return false;
            }
            area.run(installer.append(&frame.items())).expect("room for a few segments");
            changed.of_mut::<Catalog>().supersede();
            installer.clients = changed;
        }
    }
    true
}

/// Creates a keyspace, or takes the next step to its end.
fn change_keyspace(area: &Area, installer: &mut Installer, id: KeyspaceId) -> bool {
    let edit = match installer.keyspaces.get(id).map(|keyspace| keyspace.state) {
        None => {
            let (name, options) = (format!("keyspace {}", id.0), vec![id.0 as u8]);
            let (kind, state) = (KeyspaceKind::Hashed, KeyspaceState::Live);
            KeyspaceEdit::Create(Keyspace { id, name, kind, options, state, format: Vec::new() })
        }
        Some(KeyspaceState::Live) => KeyspaceEdit::Drop(id),
        Some(KeyspaceState::Dropping) => KeyspaceEdit::Forget(id),
    };
    let mut changed = copy_of(installer);
    if changed.keyspaces.apply(&edit).is_err() {
        return false;
    }
    let unmarked = MarksEdit::Drop(id);
    changed.marks.edit(&unmarked);
    changed.of_mut::<Catalog>().supersede();
    let mut items = FrameItems::default();
    edit.put(&mut items);
    MarksEdit::put(&[unmarked], &mut items);
    area.run(installer.append(&items)).expect("room for few keyspaces");
    installer.clients = changed;
    true
}

fn checkpoint(input: &mut Input<'_>) -> Checkpoint {
    let mut writer = Writer::default();
    writer.u32(input.u8().into());
    writer.u32(4096);
    writer.u32(1);
    (0..7).for_each(|_| writer.u32(input.u8().into()));
    writer.list(&[3, 1]);
    writer.list(&vec![9; usize::from(input.u8())]);
    writer.u32(1);
    writer.u16(input.u16());
    writer.u64(input.u8().into());
    Checkpoint::parse(&mut Reader::new(&writer)).expect("it is whole")
}

/// The edits of the base's marks in an install.
fn marks(clients: &Clients, input: &mut Input<'_>) -> Vec<MarksEdit> {
    let (shape, stamp_max) = (input.u8(), u64::from(input.u8()));
    let keyspace = KeyspaceId(u16::from(shape) & 3);
    let buffer_next = clients.marks.trim.buffer_next + 1;
    let all = [
        MarksEdit::Trim(LogTrim { buffer_next, stamp_max, log_crc: 5 }),
        MarksEdit::Delete(keyspace, DeletionMark { watermark: shape.into(), planned_at: 0 }),
        MarksEdit::Drop(keyspace),
    ];
    let wanted = |(number, _): &(u32, MarksEdit)| shape >> (2 + number) & 1 == 1;
    (0..).zip(all).filter(wanted).map(|(_, edit)| edit).collect()
}

/// A change that fits the catalog, mostly.
fn install(catalog: &Catalog, shape: u8, input: &mut Input<'_>) -> Install {
    let mut install = Install::default();
    if shape & 2 != 0 && catalog.segments.len() < 6 {
        install.added.push(descriptor(catalog.number_free(&[]), input));
    }
    let place = usize::from(shape >> 4);
    if let Some(state) = catalog.segments.values().nth(place % catalog.segments.len().max(1)) {
        let segment = state.descriptor.number;
        if shape & 4 != 0 {
            let first = input.u8();
            let alive = (0..state.descriptor.entries).filter(|entry| state.valid.get(*entry));
            let entries: Vec<u32> = alive.skip(usize::from(first & 15)).take(usize::from(first >> 4)).collect();
            install.deaths.push(Deaths { segment, record_bytes: entries.len() as u64, entries });
        }
        if shape & 8 != 0 {
            install.dropped.push(segment);
        }
    }
    install
}

fn descriptor(number: u32, input: &mut Input<'_>) -> Descriptor {
    let shape = input.u8();
    let entries = u32::from(input.u8()) + 1;
    let run = Run { first: input.number() % (EXTENTS_MAX / 2), count: u32::from(input.u16()) + 1 };
    let large = LargeEntry {
        entry: entries - 1,
        keyspace: KeyspaceId::DEFAULT,
        expiry: Expiry::NONE,
        stamp: 4,
        runs: vec![run],
    };
    Descriptor {
        number,
        version: input.u32().into(),
        entries,
        data_pages: 1,
        data_page_size: if shape & 64 == 0 { PageSize::Large } else { PageSize::Small },
        key_pages: 1,
        fence_pages: 1,
        record_bytes_max: 10,
        record_bytes: u64::from(entries) * 10,
        expiry_max: Expiry::from_millis(input.u64()),
        stamp_max: input.u8().into(),
        data_extents: (0..u32::from(shape & 31)).collect(),
        key_extents: vec![number],
        large: if shape & 32 == 0 { Vec::new() } else { vec![large] },
    }
}
