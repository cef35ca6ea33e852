"""Reading the text of a compiled program."""

import pytest

from memjax.planning.buffers import describe_place, largest_temporaries, parse_memory
from memjax.planning.hlo import Collective, collectives, group_size, hbm_bytes, parse_hlo, shape_bytes, trip_count

# A loop of 8 layers with an all-gather and a reduce-scatter in its body, as a TPU writes it, and an all-reduce behind.
TEXT = """HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter.1 (p: bf16[64,128]) -> bf16[16,128] {
  %p = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %inner = bf16[64,128]{1,0:T(8,128)(2,1)} all-reduce(%p), channel_id=3, replica_groups={{0,1,2,3}}, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %slice = bf16[16,128]{1,0} dynamic-slice(%inner, %zero, %zero), dynamic_slice_sizes={16,128}
}

%write (buffer: f32[8,4,128], row: f32[4,128], i: s32[]) -> f32[8,4,128] {
  %buffer = f32[8,4,128]{2,1,0} parameter(0)
  %row = f32[4,128]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %one = f32[1,4,128]{2,1,0} bitcast(%row)
  %nothing = s32[] constant(0)
  ROOT %update = f32[8,4,128]{2,1,0} dynamic-update-slice(%buffer, %one, %i, %nothing, %nothing)
}

%body (carry: (s32[], bf16[16,128], f32[8,4,128])) -> (s32[], bf16[16,128], f32[8,4,128]) {
  %carry = (s32[]{:T(128)}, bf16[16,128]{1,0}, /*index=2*/f32[8,4,128]{2,1,0}) parameter(0)
  %counter = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %shard = bf16[16,128]{1,0} get-tuple-element(%carry), index=1
  %rows = f32[8,4,128]{2,1,0} get-tuple-element(%carry), index=2
  %whole = (bf16[16,128]{1,0}, bf16[64,128]{1,0:T(8,128)(2,1)S(1)}) all-gather-start(%shard), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %gathered = bf16[64,128]{1,0:T(8,128)(2,1)S(1)} all-gather-done(%whole)
  %scattered = bf16[16,128]{1,0} fusion(%gathered), kind=kCustom, calls=%all-reduce-scatter.1
  %new = f32[4,128]{1,0:T(4,128)S(1)} custom-call(%scattered), custom_call_target="x"
  %written = f32[8,4,128]{2,1,0} fusion(%rows, %new, %counter), kind=kLoop, calls=%write, metadata={op_name="jit(step)/jvp(Model)/stack/while/body/layers_0/attention/dot_general"}
  %step = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%counter, %step)
  ROOT %out = (s32[]{:T(128)}, bf16[16,128]{1,0}, f32[8,4,128]{2,1,0}) tuple(%next, %scattered, %written)
}

%condition (state: (s32[], bf16[16,128], f32[8,4,128])) -> pred[] {
  %limit = s32[]{:T(128)} constant(8)
  %state = (s32[]{:T(128)}, bf16[16,128]{1,0}, f32[8,4,128]{2,1,0}) parameter(0)
  %now = s32[]{:T(128)} get-tuple-element(%state), index=0
  ROOT %less = pred[]{:T(512)} compare(%now, %limit), direction=LT
}

ENTRY %main (x: bf16[16,128], y: f32[8,4,128]) -> (f32[8,4,128]) {
  %x = bf16[16,128]{1,0} parameter(0), metadata={op_name="x"}
  %y = f32[8,4,128]{2,1,0} parameter(1)
  %start = s32[]{:T(128)} constant(0)
  %begin = s32[]{:T(128)} copy(%start)
  %first = (s32[]{:T(128)}, bf16[16,128]{1,0}, f32[8,4,128]{2,1,0}) tuple(%begin, %x, %y)
  %loop = (s32[]{:T(128)}, bf16[16,128]{1,0}, f32[8,4,128]{2,1,0}) while(%first), condition=%condition, body=%body
  %result = f32[8,4,128]{2,1,0} get-tuple-element(%loop), index=2
  %total = (f32[8,4,128]{2,1,0}, f32[]{:T(128)}) all-reduce(%result, %z), channel_id=9, replica_groups=mesh['a'=2,'b'=4] {'a','b'}, to_apply=%add
  ROOT %done = f32[8,4,128]{2,1,0} get-tuple-element(%total), index=0
}
"""  # noqa: E501


def test_collectives_count_as_often_as_their_loop_runs():
    found, unknown = collectives(parse_hlo(TEXT), num_devices=8)
    gathered, row = 64 * 128 * 2, 8 * 4 * 128 * 4 + 4
    assert unknown == []
    assert found == [
        Collective("all-gather", 8, 8 * gathered, 8 * gathered * 3 / 4),
        Collective("reduce-scatter", 8, 8 * gathered, 8 * gathered * 3 / 4),
        Collective("all-reduce", 1, row, row * 2 * 7 / 8),
    ]


def test_a_loop_of_unknown_length_counts_once_and_is_named():
    text = TEXT.replace("direction=LT", "direction=NE")
    found, unknown = collectives(parse_hlo(text), num_devices=8)
    assert unknown == ["loop"]
    assert {part.kind: part.count for part in found} == {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 1}


@pytest.mark.parametrize(
    "old, new, trips",
    [
        ("", "", 8),
        ("%limit = s32[]{:T(128)} constant(8)", "%limit = s32[]{:T(128)} constant(5)", 5),
        ("%start = s32[]{:T(128)} constant(0)", "%start = s32[]{:T(128)} constant(2)", 6),
        ("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}', 3),
    ],
)
def test_trips(old, new, trips):
    module = parse_hlo(TEXT.replace(old, new) if old else TEXT)
    scope = module.computations[module.entry]
    assert trip_count(module, scope, scope["loop"]) == trips


def test_traffic_counts_what_is_touched():
    # In the loop: the shard is read and the reduced shard written and read (what is gathered stays in another memory);
    # of the rows one is written. Behind it all rows are read and written.
    shard, row, rows = 16 * 128 * 2, 4 * 128 * 4, 8 * 4 * 128 * 4
    counters = 4 + (4 + 4 + 4)  # where the row is written, and the next one
    per_trip = shard + (shard + shard) + row + counters
    assert hbm_bytes(parse_hlo(TEXT)) == 8 * per_trip + (rows + rows + 4) + (4 + 4)


# An all-gather beside a product, as a v5e writes it: a fusion starts it, one goes on with it while it multiplies, and
# one ends it. All have one channel. The weight of a layer is sliced from the stack of all by a fusion in a fusion;
# copies of two more come later, and rows that a v5p gathers on its SparseCore.
ASYNCHRONOUS = """HloModule jit_step, is_scheduled=true

%start (shard: bf16[16,128]) -> (bf16[16,128], bf16[64,128]) {
  %shard = bf16[16,128]{1,0} parameter(0)
  %gather.1 = bf16[64,128]{1,0} all-gather(%shard), channel_id=5, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %call.1 = (bf16[16,128]{1,0}, bf16[64,128]{1,0}, u32[]{:S(2)}) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%pick (stack: bf16[8,128,32], i: s32[]) -> bf16[128,32] {
  %stack = bf16[8,128,32]{2,1,0} parameter(0)
  %i = s32[]{:S(6)} parameter(1)
  %zero = s32[] constant(0)
  %one = bf16[1,128,32]{2,1,0} dynamic-slice(%stack, %i, %zero, %zero), dynamic_slice_sizes={1,128,32}
  ROOT %weight = bf16[128,32]{1,0} bitcast(%one)
}

%go_on (p0: bf16[16,128], p1: bf16[64,128], p2: bf16[4,128], p3: bf16[8,128,32], p4: s32[]) -> (bf16[4,32], bf16[16,128], bf16[64,128]) {
  %p0 = bf16[16,128]{1,0} parameter(0)
  %p1 = bf16[64,128]{1,0} parameter(1)
  %p2 = bf16[4,128]{1,0:S(1)} parameter(2)
  %p3 = bf16[8,128,32]{2,1,0} parameter(3)
  %p4 = s32[]{:S(6)} parameter(4)
  %picked = bf16[128,32]{1,0} fusion(%p3, %p4), kind=kLoop, calls=%pick
  %product = bf16[4,32]{1,0:S(1)} convolution(%p2, %picked), dim_labels=bf_io->bf
  %gather.2 = bf16[64,128]{1,0} all-gather(%p0), channel_id=5, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %both = (bf16[4,32]{1,0:S(1)}, bf16[16,128]{1,0}, bf16[64,128]{1,0}) tuple(%product, %p0, %gather.2)
}

%end (q0: bf16[16,128], q1: bf16[64,128]) -> bf16[64,128] {
  %q0 = bf16[16,128]{1,0} parameter(0)
  %q1 = bf16[64,128]{1,0} parameter(1)
  %gather.3 = bf16[64,128]{1,0} all-gather(%q0), channel_id=5, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %call.3 = bf16[64,128]{1,0} custom-call(%q0, %q1, %gather.3), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (x: bf16[16,128], stack: bf16[8,128,32]) -> bf16[64,128] {
  %x = bf16[16,128]{1,0} parameter(0)
  %y = bf16[4,128]{1,0:S(1)} parameter(1)
  %weights = bf16[8,128,32]{2,1,0} parameter(2)
  %n = s32[]{:S(6)} parameter(3)
  %first = (bf16[16,128]{1,0}, bf16[64,128]{1,0}, u32[]{:S(2)}) fusion(%x), kind=kCustom, calls=%start
  %a = bf16[16,128]{1,0} get-tuple-element(%first), index=0
  %b = bf16[64,128]{1,0} get-tuple-element(%first), index=1
  %second = (bf16[4,32]{1,0:S(1)}, bf16[16,128]{1,0}, bf16[64,128]{1,0}) fusion(%a, %b, %y, %weights, %n), kind=kOutput, calls=%go_on
  %c = bf16[16,128]{1,0} get-tuple-element(%second), index=1
  %d = bf16[64,128]{1,0} get-tuple-element(%second), index=2
  %slice-start = ((bf16[8,128,32]{2,1,0}), bf16[2,128,32]{2,1,0:S(1)}, s32[]{:S(2)}) slice-start(%weights), slice={[0:2], [0:128], [0:32]}
  %slice-done = bf16[2,128,32]{2,1,0:S(1)} slice-done(%slice-start)
  %go = ((), (), (s32[99]{0})) async-start(), async_execution_thread="sparsecore", calls=%elsewhere
  %went = ((bf16[8,128,32]{2,1,0}, s32[64]{0}), bf16[64,32]{1,0}, (s32[99]{0})) async-update(%go, %weights, %ids)
  %rows = bf16[64,32]{1,0} async-done(%went)
  ROOT %third = bf16[64,128]{1,0} fusion(%c, %d), kind=kCustom, calls=%end
}
"""  # noqa: E501


def test_a_collective_beside_computation_counts_once():
    found, _ = collectives(parse_hlo(ASYNCHRONOUS), num_devices=4)
    gathered = 64 * 128 * 2
    assert found == [Collective("all-gather", 1, gathered, gathered * 3 / 4)]


def test_traffic_beside_computation():
    gathered, weight, rows = 64 * 128 * 2, 128 * 32 * 2, 64 * 32 * 2
    assert hbm_bytes(parse_hlo(ASYNCHRONOUS)) == (gathered / 4 + gathered) + weight + 2 * weight + (rows + rows)


def test_shapes():
    assert shape_bytes("(f32[]{:T(128)}, /*index=1*/pred[3,5]{1,0}, s4[8]{0})") == 4 + 15 + 4
    assert shape_bytes("f8e4m3fn[10]{0}") == 10
    assert shape_bytes("bf16[8]{0:T(8)S(1)}", hbm_only=True) == 0


def test_groups():
    assert group_size("replica_groups={}, to_apply=%add", 16) == 16
    assert group_size("replica_groups=mesh['a'=4,'b'=2] {'a':(1)2}", 8) == 2


def test_a_text_without_a_program_is_refused():
    with pytest.raises(ValueError, match="^hlo: "):
        parse_hlo("HloModule nothing")


ASSIGNMENT = """BufferAssignment:
allocation 0: size 4096, page 0, parameter 0, shape |bf16[16,128]| at ShapeIndex {}:
allocation 1: size 16384, page 0, parameter 1, shape |f32[8,4,128]| at ShapeIndex {}, maybe-live-out:
allocation 2: size 512, page 0, constant:
allocation 3: size 512, page 0, maybe-live-out:
allocation 4: size 50000, page 0, preallocated-temp:
 value: <1 scattered @0> (size=4096,offset=0): bf16[16,128]{1,0}
 value: <2 written @0> (size=30000,offset=8192): f32[8,4,128]{2,1,0}
 value: <3 carry{2} (phi) @0> (size=30000,offset=8192): f32[8,4,128]{2,1,0}
 value: <4 late @0> (size=20000,offset=8192): f32[9]{0}
allocation 5: size 999999, color 1, page 0, preallocated-temp:
 value: <5 new @1> (size=2048,offset=0): f32[4,128]{1,0:T(4,128)S(1)}
"""
RANGES = """HloLiveRange (max 30):
  InstructionSequence:
    0:x
  BufferLiveRange:
    scattered{}:2-6
    written{}:5-9
    carry{2}:1-5
    late{}:12-13
    new{}:3-20
  Live ranges at 5 (peak):
    written{}: 1 bytes (cumulative: 1 bytes)
"""


def test_memory_of_a_buffer_assignment():
    memory = parse_memory(ASSIGNMENT)
    assert (memory.arguments, memory.outputs, memory.aliased) == (20480, 16896, 16384)
    assert memory.temporaries == 50512  # with constants, without other memories
    assert memory.total == 20480 + 512 + 50512


def test_the_largest_temporaries_are_those_of_one_moment():
    found = largest_temporaries(ASSIGNMENT, RANGES, parse_hlo(TEXT))
    assert [(buffer.bytes, buffer.shape) for buffer in found] == [(30000, "f32[8,4,128]"), (4096, "bf16[16,128]")]
    assert found[0].where == "layers_0/attention/dot_general"


def test_places():
    assert describe_place("jit(step)/jvp(M)/stack/stack._run/while/body/layers_3/attention/attention._read/mul") == (
        "layers_3/attention._read/mul"
    )
    assert describe_place("") == ""
