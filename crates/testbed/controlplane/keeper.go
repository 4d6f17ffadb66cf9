package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// insideVariable tells the keeper that it is the one in the namespaces.
	insideVariable = "CLAIMKEEPER_KEEPER_INSIDE"
	// firstListener is the number of the first file that a child inherits after its standard ones.
	firstListener = 3
)

// keeper makes the namespaces in which real nodes live, and takes everything of the nodes away when it ends:
//
//	controlplane keeper DIRECTORY CGROUP NAME=ADDRESS[,NAME=ADDRESS ...] PORT ...
//
// It is two processes. The outer one holds the lifeline and stays where it was started. The inner one is the first process
// of a new pid namespace with its own network and mounts: when it dies the kernel kills all that live there (containerd, its
// shims, the containers), and with them go the mounts, the interfaces and the nftables. Only control groups outlive their
// processes, so the outer one removes CGROUP. Each node has a group NAME in it: its components are to be in NAME/components,
// and its kubelet makes a group beside that for its pods.
//
// The nodes' network has no way out: an interface with their ADDRESSes that leads nowhere, and loopback. Whoever is outside
// reaches the PORTs on 127.0.0.1 all the same: the outer one listens there and hands its sockets, which stay outside, to the inner one.
// The inner one's process id is in DIRECTORY/pids/keeper as soon as the namespaces are ready.
func keeper() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: controlplane keeper DIRECTORY CGROUP NAME=ADDRESS[,NAME=ADDRESS ...] PORT ...")
		os.Exit(2)
	}
	directory, cgroup, ports := os.Args[1], os.Args[2], os.Args[4:]
	var names, addresses []string
	for _, node := range strings.Split(os.Args[3], ",") {
		name, address, _ := strings.Cut(node, "=")
		names, addresses = append(names, name), append(addresses, address)
	}
	if os.Getenv(insideVariable) == "" {
		exitWith("keeper", keepOutside(directory, cgroup, names, ports))
	} else {
		exitWith("keeper", keepInside(directory, addresses, ports))
	}
}

func exitWith(name string, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func keepOutside(directory, cgroup string, nodes, ports []string) error {
	// The inner keeper is to die with this thread, which must therefore live as long as this process.
	runtime.LockOSThread()
	listeners, err := listen(ports)
	if err != nil {
		return err
	}
	if err := holdCgroup(cgroup); err != nil {
		return fmt.Errorf("cannot make the control group of a cluster: %w", err)
	}
	defer removeCgroup(cgroup)
	for _, node := range nodes {
		if err := makeCgroup(filepath.Join(cgroup, node, "components")); err != nil {
			return fmt.Errorf("cannot make the control group of a node: %w", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	inner := exec.Command(self, append([]string{"keeper"}, os.Args[1:]...)...)
	inner.Env = append(os.Environ(), insideVariable+"=1")
	inner.Stderr, inner.ExtraFiles = os.Stderr, listeners
	ready, err := inner.StdoutPipe()
	if err != nil {
		return err
	}
	inner.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := inner.Start(); err != nil {
		return fmt.Errorf("cannot make the namespaces of a node: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		_ = inner.Process.Kill()
	}()
	var parentEnded atomic.Bool
	go func() {
		awaitEndOfParent()
		parentEnded.Store(true)
		_ = inner.Process.Kill()
	}()
	if _, err := io.ReadFull(ready, make([]byte, 1)); err == nil {
		err = os.WriteFile(filepath.Join(directory, "pids", "keeper"), []byte(strconv.Itoa(inner.Process.Pid)), 0o600)
		if err != nil {
			_ = inner.Process.Kill()
		}
	}
	// Returns when everything in the pid namespace is dead: the kernel lets its first process go last.
	outcome := inner.Wait()
	if parentEnded.Load() {
		// Last of all, because whoever lived in the namespaces may have written until now.
		leaveNothing()
		return nil
	}
	return outcome
}

func listen(ports []string) ([]*os.File, error) {
	var files []*os.File
	for _, port := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			return nil, err
		}
		file, err := listener.(*net.TCPListener).File()
		if err != nil {
			return nil, err
		}
		// The inner keeper has a copy, and connections that nobody accepts must not pile up here.
		_ = listener.Close()
		files = append(files, file)
	}
	return files, nil
}

func keepInside(directory string, addresses, ports []string) error {
	if err := arrangeMounts(directory); err != nil {
		return err
	}
	if err := arrangeNetwork(addresses); err != nil {
		return err
	}
	for i, port := range ports {
		listener, err := net.FileListener(os.NewFile(uintptr(firstListener+i), port))
		if err != nil {
			return err
		}
		go relay(listener, "127.0.0.1:"+port)
	}
	fmt.Print(".")
	// Orphans become children of a namespace's first process. Nobody else waits for the shims.
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err == unix.ECHILD {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// arrangeMounts hides the places that containerd, the kubelet and CNI plugins write to whatever they are told: /run and /var.
func arrangeMounts(directory string) error {
	// By number instead of by name, because the run directory may itself be in one of these places.
	opened, err := os.Open(directory)
	if err != nil {
		return err
	}
	defer opened.Close()
	behind := fmt.Sprintf("/proc/self/fd/%d", opened.Fd())
	upper, work := filepath.Join(directory, "nodes/var"), filepath.Join(directory, "nodes/work")
	for _, path := range []string{upper, work} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	for _, mount := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"overlay", "/var", "overlay", 0, fmt.Sprintf("lowerdir=/var,upperdir=%s/nodes/var,workdir=%s/nodes/work", behind, behind)},
		{behind, directory, "", unix.MS_BIND, ""},
		// The kubelet's volumes are mounted below it, and those that a container asks to see must reach it.
		{"", directory, "", unix.MS_SHARED, ""},
	} {
		if err := os.MkdirAll(mount.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(mount.source, mount.target, mount.kind, mount.flags, mount.data); err != nil {
			return fmt.Errorf("cannot mount %s: %w", mount.target, err)
		}
	}
	return nil
}

func arrangeNetwork(addresses []string) error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	// One end of a cable whose other end hangs in the air; a kernel without the dummy driver has this one.
	eth0 := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "nowhere"}
	if err := netlink.LinkAdd(eth0); err != nil {
		return fmt.Errorf("cannot make a network interface: %w", err)
	}
	for _, address := range addresses {
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(eth0, parsed); err != nil {
			return err
		}
	}
	nowhere, err := netlink.LinkByName("nowhere")
	if err != nil {
		return err
	}
	for _, end := range []netlink.Link{eth0, nowhere} {
		if err := netlink.LinkSetUp(end); err != nil {
			return err
		}
	}
	// A default route, because several components look for it to learn the node's address.
	_, everywhere, err := net.ParseCIDR("0.0.0.0/0")
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Index, Dst: everywhere, Scope: netlink.SCOPE_LINK})
}

func relay(listener net.Listener, target string) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			defer to.Close()
			go copyAndClose(to, from)
			copyAndClose(from, to)
		}()
	}
}

// copyAndClose passes the end of one direction on while the other may still have something to say.
func copyAndClose(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
}
