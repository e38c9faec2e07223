from tests.proxy.control.serving import Port, on


def test_the_openapi_document_names_every_route_and_its_scheme() -> None:
    async def scene(port: Port) -> None:
        document = (await port.ask("GET", "/docs", "read")).json()
        assert document["openapi"].startswith("3.")
        assert {"/healthz", "/metrics", "/admin/mode", "/admin/status", "/admin/policy:validate"} <= set(
            document["paths"]
        )
        assert document["paths"]["/admin/mode"]["put"]["security"] == [{"HTTPBearer": ["mode"]}]
        assert "security" not in document["paths"]["/healthz"]["get"]

    on(None, scene)


def test_there_is_no_page_that_loads_scripts_from_elsewhere() -> None:
    async def scene(port: Port) -> None:
        for path in ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"):
            response = await port.ask("GET", path, "read")
            assert response.headers["content-type"] == "application/json"
            assert response.status_code == (200 if path == "/docs" else 404)

    on(None, scene)
