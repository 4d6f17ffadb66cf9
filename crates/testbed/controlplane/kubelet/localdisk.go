package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	localdiskName     = "localdisk.csi.acstor.io"
	localdiskTopology = "topology.localdisk.csi.acstor.io/node"
)

// localdisk is what the driver localdisk.csi.acstor.io is to a node: its pods mount volumes that are directories of the node's
// disk. A volume that comes from elsewhere is a blank one here. Who makes and moves volumes on the API is not its business.
type localdisk struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	node, socket, disk string
}

// serveLocaldisk registers the driver with the kubelet that has these flags. It serves as long as this process lives.
func serveLocaldisk(flags []string) error {
	root, node := valueOf(flags, "--root-dir="), valueOf(flags, "--hostname-override=")
	registry := filepath.Join(root, "plugins_registry")
	driver := &localdisk{
		node: node,
		// One for everything, because a socket's name must be short.
		socket: filepath.Join(registry, "localdisk"),
		disk:   filepath.Join(filepath.Dir(root), "localdisk"),
	}
	if err := os.MkdirAll(registry, 0o750); err != nil {
		return err
	}
	// Of the process before this one, if it was killed.
	if err := os.Remove(driver.socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", driver.socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, driver)
	csi.RegisterIdentityServer(server, driver)
	csi.RegisterNodeServer(server, driver)
	go func() {
		if err := server.Serve(listener); err != nil {
			fmt.Fprintln(os.Stderr, "localdisk:", err)
		}
	}()
	return nil
}

func valueOf(flags []string, name string) string {
	for _, flag := range flags {
		if value, found := strings.CutPrefix(flag, name); found {
			return value
		}
	}
	return ""
}

func (d *localdisk) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: localdiskName, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *localdisk) NotifyRegistrationStatus(_ context.Context, outcome *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !outcome.PluginRegistered {
		fmt.Fprintln(os.Stderr, "localdisk: the kubelet does not want it:", outcome.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *localdisk) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: localdiskName, VendorVersion: "testbed"}, nil
}

func (d *localdisk) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *localdisk) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	segments := map[string]string{localdiskTopology: d.node}
	return &csi.NodeGetInfoResponse{NodeId: d.node, AccessibleTopology: &csi.Topology{Segments: segments}}, nil
}

// NodeGetCapabilities says that there is nothing to be done but what follows.
func (d *localdisk) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *localdisk) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	volume, err := d.directory(request.VolumeId)
	if err != nil {
		return nil, err
	}
	mounted, err := isMountPoint(request.TargetPath)
	if err != nil {
		return nil, err
	}
	if mounted {
		// Whoever asks twice did not hear the first answer.
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := os.MkdirAll(request.TargetPath, 0o750); err != nil {
		return nil, err
	}
	if err := unix.Mount(volume, request.TargetPath, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("cannot mount %s: %w", volume, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// directory makes the directory of a volume, for whichever user its pod runs as, unless it is there.
func (d *localdisk) directory(volume string) (string, error) {
	if volume == "" || strings.Contains(volume, "/") {
		return "", status.Errorf(codes.InvalidArgument, "there can be no volume %q", volume)
	}
	path := filepath.Join(d.disk, volume)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o777)
}

func (d *localdisk) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	mounted, err := isMountPoint(request.TargetPath)
	if err != nil {
		return nil, err
	}
	if mounted {
		if err := unix.Unmount(request.TargetPath, 0); err != nil {
			return nil, fmt.Errorf("cannot unmount %s: %w", request.TargetPath, err)
		}
	}
	// Never what is in it: if something still is mounted there, that is a volume.
	if err := os.Remove(request.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func isMountPoint(path string) (bool, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	// The fifth word of each line; spaces are not to be expected in our names.
	for _, line := range strings.Split(string(mounts), "\n") {
		if words := strings.Fields(line); len(words) > 4 && words[4] == path {
			return true, nil
		}
	}
	return false, nil
}
