"""The transport: it opens simulated channels, over which the real links talk to simulated agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.head.code.bundle import Archive, Bundle
from orchestrator.head.links import edge
from orchestrator.head.links.bootstrap import COMMAND, Started
from orchestrator.head.reach.transport import ChannelClosed
from orchestrator.protocol.channel import Decoder, encode
from tests.agents import hello
from tests.sim.agent import Agent
from tests.sim.fibers import Waiters
from tests.sim.hush import check_frame
from tests.sim.wires import Wire

if TYPE_CHECKING:
    from orchestrator.head.reach.transport import Channel, Receiver
    from tests.sim.head import Head
    from tests.sim.machine import Machine

CONNECT_TIMEOUT_S = 20.0
READ_BYTES = 1 << 14

BUNDLE = Bundle(code=Archive("0" * 64, b""), psutil=None, platform="test")


class SimTransport:
    """Opens channels for one coordinator."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self.channels: list[SimChannel] = []
        """Those that are open."""

    def open(self, host: HostPlan, command: str) -> Channel:
        """Connect, which takes a while. Raises ConnectFailed where the host does not answer."""
        assert command == COMMAND
        world = self._head.world
        machine, chance, fibers = world.machines[host.name], world.chance, world.fibers
        boot = machine.boot
        slow = 15.0 if chance.random() < 0.03 else 0.0
        if machine.is_reachable:
            fibers.wait(chance.uniform(0.3, 1.5) + 6 * world.scenario.latency_s + slow)
        if not machine.is_reachable or machine.boot != boot:
            fibers.wait(CONNECT_TIMEOUT_S)
            raise ConnectFailed(host.name, "no answer within 20 s")
        channel = SimChannel(self, self._head, machine)
        self.channels.append(channel)
        return channel

    def close(self, host: HostPlan) -> None:
        """Close every channel to this host."""
        for channel in list(self.channels):
            if channel.machine.name == host.name:
                channel.close()


class SimChannel:
    """A channel: two wires, and the agent at their end."""

    def __init__(self, transport: SimTransport, head: Head, machine: Machine) -> None:
        world, self.machine = head.world, machine
        self._transport = transport
        self._head = head
        self._waiters = Waiters(world.fibers)
        self._data = bytearray()
        self._ended = False
        self.agent = Agent(machine)
        boot, scenario = machine.boot, world.scenario
        times = (scenario.latency_s, 0.3 * scenario.runs[0].plan.timing.unreachable_after_s)

        def handled(data: bytes | None) -> None:
            if machine.boot == boot and machine.up:
                self.agent.receive(data)

        self.down = Wire(world.heap, world.chance, *times, lambda: machine.cut_down, handled)
        self.up = Wire(world.heap, world.chance, *times, lambda: machine.cut_up, self._arrive)
        self.agent.out = self.up
        alive = [wire for wire in world.wires[machine.name] if not wire.dead]
        world.wires[machine.name] = [*alive, self.down, self.up]
        self.up.send(encode({"hello": hello(machine.name, machine.boot_id)}))

    def _arrive(self, data: bytes | None) -> None:
        if data is None:
            self._ended = True
        else:
            self._data += data
        self._waiters.wake()

    def read(self, size: int) -> bytes:
        """See Channel."""
        while not self._data and not self._ended:
            self._waiters.wait()
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken

    def feed(self, receive: Receiver) -> None:
        """See Channel."""
        self._head.world.fibers.start(self._head.fibers, lambda: self._feed(receive))

    def _feed(self, receive: Receiver) -> None:
        while data := self.read(READ_BYTES):
            pause_s = receive(data)
            if pause_s > 0:
                self._head.world.fibers.wait(pause_s)
        receive(b"")

    def write(self, data: bytes) -> None:
        """See Channel. The kernel takes all of it at once."""
        if self._ended:
            raise ChannelClosed("the channel is closed")
        check_frame(data)
        self.down.send(data)

    def close(self) -> None:
        """See Channel. The kernel still sends what is in flight; what arrives is dropped."""
        if self in self._transport.channels:
            self._transport.channels.remove(self)
            self.down.send(None)
            self._drop()

    def _drop(self) -> None:
        self.up.dead = self._ended = True
        self._data.clear()
        self._waiters.wake()

    def reset(self) -> None:
        """Reset the connection, so that both ends learn of it."""
        self.down.break_off()
        self.up.break_off()
        self.agent.end()
        self._ended = True
        self._waiters.wake()

    def lose(self) -> None:
        """Lose the head's machine: nobody closes the connection, and the agent learns of it much later."""
        self.up.dead = True
        self.down.break_off()

    def stderr_tail(self) -> str:
        """See Channel."""
        return ""

    def exit_status(self) -> int | None:
        """See Channel."""
        return None


class Boot:
    """Stands for `connection.bootstrap`, whose handshake is not played: the agent says hello at once."""

    COMMAND = COMMAND

    @staticmethod
    def start_agent(channel: SimChannel, host: HostPlan, _bundle: Bundle, *, timeout_s: float) -> Started:
        """Wait for the hello. Raises ConnectFailed where none comes in time."""
        channel.machine.world.heap.after(timeout_s, lambda: None if heard else channel.close())
        decoder, heard = Decoder(), False
        while not heard:
            data = channel.read(1 << 16)
            if not data:
                raise ConnectFailed(host.name, "the connection broke while its agent was being started")
            frames = decoder.feed(data)
            heard = bool(frames)
        (message, _), *rest = frames
        return Started(edge.hello(host.name, message), rest, decoder)
