package main

import (
	"fmt"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	authenticated "k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/common"

	generated "vmpin.io/tests/cluster/openapi"
)

// serve runs the server until the process is killed.
func serve(s settings) error {
	etcd, err := startEtcd(s.state)
	if err != nil {
		return err
	}
	scheme := newScheme(groups)
	config, storage, err := configure(s, scheme, etcd)
	if err != nil {
		return err
	}
	// What the front has not, the server of custom resources is asked for.
	custom, err := customResources(*config, storage)
	if err != nil {
		return err
	}
	front, err := config.Complete().New("front", custom.GenericAPIServer)
	if err != nil {
		return err
	}
	if err := install(front, scheme, config); err != nil {
		return err
	}
	front.Handler.NonGoRestfulMux.HandleFunc("/compact", compaction(etcd))
	return front.PrepareRun().RunWithContext(genericserver.SetupSignalContext())
}

// configure gives what the front and the server of custom resources have in common.
func configure(s settings, scheme *runtime.Scheme, etcd *store) (
	*genericserver.RecommendedConfig, *options.EtcdOptions, error) {
	config := genericserver.NewRecommendedConfig(serializer.NewCodecFactory(scheme))
	run := options.NewServerRunOptions()
	run.AdvertiseAddress = loopback
	if err := run.ApplyTo(&config.Config); err != nil {
		return nil, nil, err
	}

	serving := options.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort, serving.PermitPortSharing = loopback, s.port, true
	// An authority of its own, kept in tls.crt behind the certificate that it signed; new ones where the file is gone.
	serving.ServerCert.CertDirectory, serving.ServerCert.PairName = s.state, "tls"
	if err := serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{loopback}); err != nil {
		return nil, nil, err
	}
	if err := serving.WithLoopback().ApplyToConfig(&config.Config); err != nil {
		return nil, nil, err
	}

	storage := options.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", codecFor(scheme, groups)))
	storage.StorageConfig.Transport.ServerList = []string{etcd.url}
	storage.StorageConfig.CompactionInterval = 0 // only when it is asked for
	storage.EnableWatchCache = s.watchCache
	if err := storage.ApplyTo(&config.Config); err != nil {
		return nil, nil, err
	}

	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return nil, nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return nil, nil, err
	}
	config.SharedInformerFactory = informers.NewSharedInformerFactory(client, 10*time.Minute)
	config.Authentication.Authenticator = authenticated.NewAuthenticatedGroupAdder(
		bearertoken.New(tokens(s.path("tokens.json"))))
	config.Authorization.Authorizer = authorizer.AuthorizerFunc(newRBAC(config.SharedInformerFactory).noted)
	auditing := options.NewAuditOptions() // each line is written before the next request of its connection
	auditing.PolicyFile, auditing.LogOptions.Path, auditing.LogOptions.MaxSize = s.path("audit.json"), s.path("audit.log"), 0
	if err := auditing.ApplyTo(&config.Config); err != nil {
		return nil, nil, err
	}
	admission := options.NewAdmissionOptions()
	admission.DisablePlugins = []string{
		"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"}
	if err := admission.ApplyTo(&config.Config, config.SharedInformerFactory, client, dynamicClient, config.FeatureGate,
		config.EffectiveVersion); err != nil {
		return nil, nil, err
	}

	definitions := func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := extensionsopenapi.GetOpenAPIDefinitions(ref)
		for name, definition := range generated.GetOpenAPIDefinitions(ref) {
			all[name] = definition
		}
		return all
	}
	namer := openapi.NewDefinitionNamer(clientscheme.Scheme, apiserver.Scheme)
	config.OpenAPIConfig = genericserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = genericserver.DefaultOpenAPIV3Config(definitions, namer)
	// kubectl finds custom resources in the discovery document of the front.
	config.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	config.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())
	config.BuildHandlerChainFunc = func(handler http.Handler, c *genericserver.Config) http.Handler {
		return genericserver.DefaultBuildHandlerChain(withFaults(handler, s.path("faults.json")), c)
	}
	config.AddPostStartHookOrDie("start-informers", func(context genericserver.PostStartHookContext) error {
		config.SharedInformerFactory.Start(context.Done())
		return nil
	})
	config.AddPostStartHookOrDie("make-namespaces", func(context genericserver.PostStartHookContext) error {
		for _, name := range []string{"default", "kube-system"} {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if _, err := client.CoreV1().Namespaces().Create(context, namespace, metav1.CreateOptions{}); err != nil &&
				!errors.IsAlreadyExists(err) {
				return err
			}
		}
		return nil
	})
	return config, storage, nil
}

// customResources serves CustomResourceDefinitions and what they define.
func customResources(shared genericserver.RecommendedConfig, storage *options.EtcdOptions) (
	*apiserver.CustomResourceDefinitions, error) {
	shared.PostStartHooks = map[string]genericserver.PostStartHookConfigEntry{} // run by the front
	copied := *storage
	copied.SkipHealthEndpoints = true
	copied.StorageConfig.Prefix = "/registry/apiextensions.kubernetes.io"
	copied.StorageConfig.Codec = apiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	if err := copied.ApplyTo(&shared.Config); err != nil {
		return nil, err
	}
	shared.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
	config := apiserver.Config{GenericConfig: &shared, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: extensions.NewCRDRESTOptionsGetter(copied, nil, shared.StorageObjectCountTracker)}}
	return config.Complete().New(genericserver.NewEmptyDelegate())
}

// install has the front serve the groups.
func install(front *genericserver.GenericAPIServer, scheme *runtime.Scheme,
	config *genericserver.RecommendedConfig) error {
	for _, group := range groups {
		served, err := storageFor(scheme, group, config.RESTOptionsGetter)
		if err != nil {
			return err
		}
		info := genericserver.NewDefaultAPIGroupInfo(group.version.Group, scheme, runtime.NewParameterCodec(scheme),
			serializer.NewCodecFactory(scheme))
		info.PrioritizedVersions = info.PrioritizedVersions[:1]
		info.VersionedResourcesStorageMap[group.version.Version] = served
		if group.version.Group == "" {
			err = front.InstallLegacyAPIGroup(genericserver.DefaultLegacyAPIPrefix, &info)
		} else {
			err = front.InstallAPIGroup(&info)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", group.version, err)
		}
	}
	return nil
}
